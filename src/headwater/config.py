"""Settings: which there are, which values they take, and where a value came from.

The first of these that has a value wins: a flag or environment variable (`HEADWATER_MAX_BUFFER_ROWS`); the
table `headwater.setting`; a parameter of the server (`headwater.max_buffer_rows` in postgresql.conf or by
ALTER DATABASE … SET); the profile, which is itself a setting and stands for several others; the default.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal, get_args

from headwater.clock import parse_duration
from headwater.errors import InvalidSetting

PoolerMode = Literal["auto", "none", "transaction"]
"""Says whether a pooler may give each transaction another session: detect it, no, or yes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings with their effective values."""

    max_buffer_rows: int = 1_000_000
    lock_timeout_ms: int = 2_000
    lock_attempts: int = 10
    statement_timeout: str = "0ms"
    idle_in_transaction_timeout: str = "1m"
    transaction_timeout: str = "6h"
    history_retention: str = "7d"
    history_single_retention: str = "1h"
    history_latest: int = 100
    history_minute_retention: str = "2d"
    history_hour_retention: str = "21d"
    history_max_mb: int = 256
    verify_max_rows: int = 20
    keep_inner: str = "auto"
    spark_master: str = "local[*]"
    spark_conf: str = ""
    spark_ui: str = "off"
    spark_timeout: str = "1h"
    spark_min_rows: int = 100_000
    profile: str = "none"
    scheduler_interval_ms: int = 1_000
    event_driven_wake: bool = False
    parallel_refresh_mode: bool = True
    max_concurrent_refreshes: int = 4
    max_dynamic_refresh_workers: int = 4
    per_database_worker_quota: int = 0
    tiered_scheduling: bool = False
    adaptive_workers: bool = False
    min_workers: int = 1
    max_workers: int = 8
    merge_work_mem_mb: int = 0
    delta_work_mem_cap_mb: int = 0
    connection_pooler_mode: PoolerMode = "auto"
    compiled_refreshes: bool = True
    drain: bool = False
    audit_interval: str = "1d"
    audit_budget: str = "5s"


PROFILES: dict[str, dict[str, str]] = {
    # Changes are visible within 50 ms of the commit, at the cost of a service that is always busy.
    "low-latency": {
        "scheduler_interval_ms": "200",
        "event_driven_wake": "on",
        "parallel_refresh_mode": "on",
        "max_dynamic_refresh_workers": "8",
        "tiered_scheduling": "on",
    },
    # For two hundred stream tables and more.
    "high-throughput": {
        "scheduler_interval_ms": "500",
        "parallel_refresh_mode": "on",
        "max_dynamic_refresh_workers": "16",
        "max_concurrent_refreshes": "8",
        "per_database_worker_quota": "8",
        "tiered_scheduling": "on",
        "merge_work_mem_mb": "128",
    },
    # For a server of 4 CPUs and 8 GB.
    "resource-constrained": {
        "scheduler_interval_ms": "2000",
        "parallel_refresh_mode": "on",
        "max_dynamic_refresh_workers": "2",
        "max_concurrent_refreshes": "2",
        "tiered_scheduling": "on",
        "merge_work_mem_mb": "32",
        "delta_work_mem_cap_mb": "256",
    },
}
MOST_WORKERS = 64
"""The limit for a whole server; each worker is a connection."""
MOST_WORK_MEM_MB = 2_097_151
"""The most that the server accepts."""
SWITCH = {
    **dict.fromkeys(("on", "true", "yes", "1"), True),
    **dict.fromkeys(("off", "false", "no", "0"), False),
}

MOST_PORTIONS = 10
"""Where deadlock_timeout is very short, the pauses between so many attempts are patience enough."""


def giving_way(settings: Settings, deadlock_timeout_ms: int) -> Settings:
    """Split the patience for locks into portions shorter than the server's deadlock_timeout.

    A session that has waited for deadlock_timeout looks for a deadlock and, if there is one, is itself the
    victim. A user who waits for us began to wait after we got our first lock. If we have all our locks, or
    have given up, within deadlock_timeout of that, a deadlock is over before the user's session looks. So all
    the locks on users' tables that one transaction takes share one portion.

    >>> shortened = giving_way(Settings(lock_timeout_ms=2000, lock_attempts=10), 1000)
    >>> shortened.lock_timeout_ms, shortened.lock_attempts
    (500, 40)
    """
    portion = max(1, min(settings.lock_timeout_ms, deadlock_timeout_ms // 2))
    times = min(MOST_PORTIONS, -(-settings.lock_timeout_ms // portion))
    return replace(settings, lock_timeout_ms=portion, lock_attempts=settings.lock_attempts * times)


@dataclass(frozen=True)
class Setting:
    """One setting as `headwater settings` shows it."""

    name: str
    value: str
    origin: str  # flag, environment, table, server, the profile by its name, or default
    default: str
    description: str


@dataclass(frozen=True)
class _Rule:
    description: str
    minimum: int | None = None
    maximum: int = 2**31 - 1
    duration: bool = False
    zero_is_off: bool = False
    switch: bool = False
    choices: tuple[str, ...] = ()
    text: Callable[[str], str] | None = None  # validates a text; raises ValueError with the reason
    stored: bool = True  # False for settings that must be known before the database can be asked


def _master(text: str) -> str:
    if not re.fullmatch(r"local(\[[\w*, ]+\])?|local-cluster\[[\d, ]+\]|yarn|(spark|k8s|sc)://\S+", text):
        raise ValueError("is no master of Spark")
    return text


def _conf(text: str) -> str:
    spark_options(text)
    return text


def spark_options(text: str) -> dict[str, str]:
    """Return the options in `spark_conf`: `name=value`, separated by white space or commas.

    A comma separates only where another option follows it, so a value can be a list; quotes keep spaces.

    >>> spark_options("spark.jars=a.jar,b.jar,spark.executor.memory=2g spark.cores.max=4")
    {'spark.jars': 'a.jar,b.jar', 'spark.executor.memory': '2g', 'spark.cores.max': '4'}
    """
    options = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("has a quote that does not end") from None
    for word in words:
        for part in re.split(r",(?=spark\.[\w.-]+=)|,$", word):
            name, equals, value = part.partition("=")
            if part and (not equals or not name.startswith("spark.")):
                raise ValueError(f"has {part!r}, which is not spark.NAME=VALUE")
            if part:
                options[name] = value
    return options


RULES: dict[str, _Rule] = {
    "max_buffer_rows": _Rule(
        "a change table with more rows than this for one stream table makes it recompute instead",
        minimum=1,
        maximum=2**62,
    ),
    "lock_timeout_ms": _Rule("how long a statement of ours waits for a lock on a user's table", minimum=1),
    "lock_attempts": _Rule(
        "how often an operation that could not get its locks is tried", minimum=1, maximum=1000
    ),
    "statement_timeout": _Rule(
        "longest time for one statement of a refresh, 0ms for no limit", duration=True, zero_is_off=True
    ),
    "idle_in_transaction_timeout": _Rule(
        "how long the server waits for the program in the middle of a transaction of ours, 0ms for ever",
        duration=True,
        zero_is_off=True,
    ),
    "transaction_timeout": _Rule(
        "longest time for one transaction of ours, 0ms for no limit; from PostgreSQL 17 on",
        duration=True,
        zero_is_off=True,
    ),
    "history_retention": _Rule(
        "how long failures, loads and recomputations stay in the history, and everything else at most",
        duration=True,
    ),
    "history_single_retention": _Rule("how long each delta stays in the history", duration=True),
    "history_latest": _Rule(
        "so many of the latest deltas of each stream table stay in the history, however old",
        minimum=1,
        maximum=100_000,
    ),
    "history_minute_retention": _Rule("how long the sums of refreshes by the minute stay", duration=True),
    "history_hour_retention": _Rule("how long the sums of refreshes by the hour stay", duration=True),
    "history_max_mb": _Rule(
        "what the history takes at most, in MB: the oldest deltas go first, then the oldest minutes",
        minimum=8,
        maximum=2**20,
    ),
    "verify_max_rows": _Rule("how many differing rows verify shows", minimum=1),
    "keep_inner": _Rule(
        "whether results inside a query get storage of their own: auto decides by cost, always or never",
        choices=("auto", "always", "never"),
    ),
    "spark_master": _Rule(
        "where Spark runs: local[N], spark://HOST:PORT, k8s://…, yarn, or sc://HOST:PORT for Spark Connect",
        text=_master,
    ),
    "spark_conf": _Rule(
        "more options for Spark: spark.NAME=VALUE, separated by spaces or commas", text=_conf
    ),
    "spark_ui": _Rule("whether Spark serves its web pages: off or on", choices=("off", "on")),
    "spark_timeout": _Rule("longest time that a refresh waits for Spark", duration=True),
    "spark_min_rows": _Rule(
        "engine auto loads sources of fewer rows than this inside PostgreSQL", minimum=0, maximum=2**62
    ),
    "profile": _Rule(
        "several settings in one word, for those that are not set themselves: " + ", ".join(PROFILES),
        choices=("none", *PROFILES),
    ),
    "scheduler_interval_ms": _Rule("how often the service looks for what is due", minimum=50, maximum=60_000),
    "event_driven_wake": _Rule("whether a write wakes the service, which then need not wait", switch=True),
    "parallel_refresh_mode": _Rule(
        "whether stream tables that do not depend on each other are refreshed at once", switch=True
    ),
    "max_concurrent_refreshes": _Rule(
        "refreshes that run at once in one database", minimum=1, maximum=MOST_WORKERS
    ),
    "max_dynamic_refresh_workers": _Rule(
        "workers of the whole server, each with a connection", minimum=1, maximum=MOST_WORKERS
    ),
    "per_database_worker_quota": _Rule(
        "workers that one database may use while others need them, 0 for all", minimum=0, maximum=MOST_WORKERS
    ),
    "tiered_scheduling": _Rule(
        "whether stream tables whose sources rest are looked at less often", switch=True
    ),
    "adaptive_workers": _Rule(
        "whether the number of workers follows the load, between min_workers and max_workers", switch=True
    ),
    "min_workers": _Rule("fewest workers with adaptive_workers", minimum=1, maximum=MOST_WORKERS),
    "max_workers": _Rule("most workers with adaptive_workers", minimum=1, maximum=MOST_WORKERS),
    "merge_work_mem_mb": _Rule(
        "work_mem of the statements of a refresh in MB, 0 for the server's",
        minimum=0,
        maximum=MOST_WORK_MEM_MB,
    ),
    "delta_work_mem_cap_mb": _Rule(
        "work_mem of a refresh is held to this many MB divided by the tables that it reads, 0 for no limit",
        minimum=0,
        maximum=MOST_WORK_MEM_MB,
    ),
    "connection_pooler_mode": _Rule(
        "whether a pooler shares sessions: transaction for yes, none for no, auto finds out; not stored",
        choices=get_args(PoolerMode),
        stored=False,
    ),
    "compiled_refreshes": _Rule(
        "whether small changes are taken in by a function that is compiled for each stream table", switch=True
    ),
    "drain": _Rule("whether the service begins no new refresh; capture goes on", switch=True),
    "audit_interval": _Rule(
        "how often the service compares each stream table with its query, 0ms for never",
        duration=True,
        zero_is_off=True,
    ),
    "audit_budget": _Rule(
        "how long an audit keeps the database busy at a time, and one statement of it at most", duration=True
    ),
}
PREFIX = "headwater."


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that environment variables give, such as HEADWATER_MAX_BUFFER_ROWS.

    >>> from_environment({"HEADWATER_LOCK_ATTEMPTS": "3", "HOME": "/root"})
    {'lock_attempts': '3'}
    """
    variables = {name: f"HEADWATER_{name.upper()}" for name in RULES}
    return {name: environment[variable] for name, variable in variables.items() if variable in environment}


def pooler_mode(overrides: Mapping[str, str], environment: Mapping[str, str]) -> PoolerMode:
    """Return the pooler mode, which must be known before a database can be asked for its settings.

    >>> pooler_mode({}, {"HEADWATER_CONNECTION_POOLER_MODE": "transaction"})
    'transaction'
    """
    layers = (("flag", overrides), ("environment", from_environment(environment)))
    found: PoolerMode = _strongest("connection_pooler_mode", layers)[0]
    return found


def check_storable(name: str) -> None:
    """Raise if a setting cannot be stored in the database, because it is needed to reach the database."""
    bare = name.removeprefix(PREFIX)
    if not RULES[bare].stored:
        raise InvalidSetting(
            f"setting {bare} cannot be stored: it must be known before the database can be asked",
            hint=f"set the environment variable HEADWATER_{bare.upper()}, or pass it to headwater.connect",
        )


def described() -> list[dict[str, Any]]:
    """Describe what each setting takes, as far as SQL can check it, for `headwater.set_config`."""
    return [
        {
            "name": name,
            "kind": _kind(rule),
            "minimum": rule.minimum,
            "maximum": rule.maximum,
            "zero_is_off": rule.zero_is_off,
            "choices": list(rule.choices),
            "description": rule.description,
        }
        for name, rule in RULES.items()
    ]


def _kind(rule: _Rule) -> str:
    if not rule.stored:
        return "text"  # SQL refers to `headwater set` for these, which gives the reason
    if rule.duration:
        return "duration"
    if rule.choices:
        return "choice"
    if rule.switch:
        return "switch"
    return "text" if rule.text is not None else "number"


def storable(text: str) -> bool:
    """Tell whether PostgreSQL can store a text: it takes neither NUL nor surrogates.

    >>> storable("größer"), storable(chr(0)), storable(chr(0xD800))
    (True, False, False)
    """
    return "\0" not in text and not any("\ud800" <= sign <= "\udfff" for sign in text)


def checked(name: str, text: str) -> Any:
    """Return the value of a setting from its text; raise if it does not take it."""
    bare = name.removeprefix(PREFIX)
    if bare not in RULES:
        raise InvalidSetting(
            f"there is no setting {name!r}",
            hint=f"there are {', '.join(sorted(RULES))}; see headwater settings",
        )
    if not storable(text):
        raise InvalidSetting(
            f"setting {bare}: {text!r} has a character that PostgreSQL cannot store", hint="leave it out"
        )
    rule = RULES[bare]
    if rule.duration:
        if not (rule.zero_is_off and text.strip() in ("0", "0ms", "0s")):
            try:
                if parse_duration(text) > timedelta(milliseconds=rule.maximum):
                    raise InvalidSetting(f"{text!r} is too long", hint="use at most 24d")
            except InvalidSetting as error:
                raise InvalidSetting(f"setting {bare}: {error.message}", hint=error.hint) from error
            return text.strip()
        return "0ms"
    if rule.switch:
        if text.strip().lower() not in SWITCH:
            raise InvalidSetting(f"setting {bare}: {text!r} is not on or off", hint=rule.description)
        return SWITCH[text.strip().lower()]
    if rule.choices:
        if text.strip().lower() not in rule.choices:
            raise InvalidSetting(
                f"setting {bare}: {text!r} is not {' or '.join(rule.choices)}", hint=rule.description
            )
        return text.strip().lower()
    if rule.text is not None:
        try:
            return rule.text(text.strip())
        except ValueError as error:
            raise InvalidSetting(f"setting {bare}: {text!r} {error}", hint=rule.description) from None
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        raise InvalidSetting(
            f"setting {bare}: {text!r} is not a whole number", hint=rule.description
        ) from None
    if rule.minimum is not None and value < rule.minimum:
        raise InvalidSetting(f"setting {bare}: {value} is below {rule.minimum}", hint=rule.description)
    if value > rule.maximum:
        raise InvalidSetting(f"setting {bare}: {value} is above {rule.maximum}", hint=rule.description)
    return value


def written(value: Any) -> str:
    """Return the value of a setting as users write it, and as it is stored.

    >>> written(True), written(7), written("1h")
    ('on', '7', '1h')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def milliseconds(duration: str) -> int:
    """Return a checked duration in milliseconds, for the server, which has other units."""
    return 0 if duration == "0ms" else max(1, round(parse_duration(duration) / timedelta(milliseconds=1)))


def resolve(*layers: tuple[str, Mapping[str, str]]) -> tuple[Settings, list[Setting]]:
    """Return the effective settings from layers of texts, strongest first, and where each came from.

    The profile is one more layer, the weakest; the other layers say which profile it is.
    """
    profile, _ = _strongest("profile", layers)
    with_profile = [*layers, (f"profile {profile}", PROFILES.get(profile, {}))]
    values: dict[str, Any] = {}
    shown = []
    for field in fields(Settings):
        value, origin = _strongest(field.name, with_profile)
        values[field.name] = value
        default, description = written(field.default), RULES[field.name].description
        shown.append(Setting(field.name, written(value), origin, default, description))
    for name, layer in layers:
        for unknown in layer.keys() - RULES.keys():
            raise InvalidSetting(
                f"unknown setting {unknown!r} in {name}", hint=f"there are {', '.join(sorted(RULES))}"
            )
    return Settings(**values), shown


def _strongest(name: str, layers: Iterable[tuple[str, Mapping[str, str]]]) -> tuple[Any, str]:
    """Return the value of a setting, and where it came from."""
    for origin, layer in layers:
        if name in layer:
            try:
                return checked(name, layer[name]), origin
            except InvalidSetting as error:
                error.detail = f"that is what the {origin} says"
                raise
    return getattr(Settings, name), "default"
