"""The settings of a database: flags, the environment, the catalog and the server put together."""

from __future__ import annotations

from collections.abc import Mapping

from headwater import config
from headwater.catalog.installed import State
from headwater.config import Setting, Settings


def effective(state: State, overrides: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """Returns the settings that hold in a database, with patience for locks in portions (`giving_way`)."""
    settings = config.resolve(*_layers(state, overrides, environment))[0]
    known = state.deadlock_timeout_ms  # not without a catalog
    return config.giving_way(settings, known) if known else settings


def listed(state: State, overrides: Mapping[str, str], environment: Mapping[str, str]) -> list[Setting]:
    """Returns every setting as users wrote it, and where it came from."""
    return config.resolve(*_layers(state, overrides, environment))[1]


def _layers(
    state: State, overrides: Mapping[str, str], environment: Mapping[str, str]
) -> list[tuple[str, Mapping[str, str]]]:
    """The strongest first."""
    return [
        ("flag", overrides),
        ("environment", config.from_environment(environment)),
        ("table", state.stored),
        ("server", state.server),
    ]
