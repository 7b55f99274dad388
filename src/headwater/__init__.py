"""Headwater keeps tables fresh: stream tables for any PostgreSQL.

>>> import headwater                                                   # doctest: +SKIP
>>> hw = headwater.connect("postgresql://localhost/shop")              # doctest: +SKIP
>>> hw.create("revenue", "SELECT region, sum(amount) FROM sales GROUP BY region")  # doctest: +SKIP
>>> hw.refresh("revenue")                                              # doctest: +SKIP
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.api import Headwater, connect
    from headwater.catalog.history import HistoryEntry, HistorySum, Outcome
    from headwater.catalog.incidents import Incident
    from headwater.catalog.jobs import RunningJob
    from headwater.catalog.stream_tables import StreamTable
    from headwater.config import Setting
    from headwater.errors import HeadwaterError
    from headwater.inspect.explain import Explanation
    from headwater.inspect.status import StreamTableStatus
    from headwater.inspect.verify import Verification
    from headwater.lifecycle.repair import Repaired
    from headwater.refresh.index_advice import MissingIndex

# The program that imports us decides where log messages go, if anywhere.
logging.getLogger("headwater").addHandler(logging.NullHandler())

__all__ = [
    "Explanation",
    "Headwater",
    "HeadwaterError",
    "HistoryEntry",
    "HistorySum",
    "Incident",
    "MissingIndex",
    "Outcome",
    "Repaired",
    "RunningJob",
    "Setting",
    "StreamTable",
    "StreamTableStatus",
    "Verification",
    "connect",
]

_HOMES = {
    "Explanation": "inspect.explain",
    "Headwater": "api",
    "HeadwaterError": "errors",
    "HistoryEntry": "catalog.history",
    "HistorySum": "catalog.history",
    "Incident": "catalog.incidents",
    "MissingIndex": "refresh.index_advice",
    "Outcome": "catalog.history",
    "Repaired": "lifecycle.repair",
    "RunningJob": "catalog.jobs",
    "Setting": "config",
    "StreamTable": "catalog.stream_tables",
    "StreamTableStatus": "inspect.status",
    "Verification": "inspect.verify",
    "connect": "api",
}
"""The module of each public name. It is loaded at first use, because every start of the program imports this
package."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"headwater.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
