"""Headwater keeps tables fresh: stream tables for any PostgreSQL.

>>> import headwater                                                   # doctest: +SKIP
>>> hw = headwater.connect("postgresql://localhost/shop")              # doctest: +SKIP
>>> hw.create("revenue", "SELECT region, sum(amount) FROM sales GROUP BY region")  # doctest: +SKIP
>>> hw.refresh("revenue")                                              # doctest: +SKIP
"""

import logging

from headwater.api import Headwater, connect
from headwater.catalog.history import HistoryEntry, HistorySum, Outcome
from headwater.catalog.jobs import RunningJob
from headwater.catalog.stream_tables import StreamTable
from headwater.config import Setting
from headwater.errors import HeadwaterError
from headwater.inspect.explain import Explanation
from headwater.inspect.status import StreamTableStatus
from headwater.inspect.verify import Verification
from headwater.lifecycle.repair import Repaired
from headwater.refresh.incidents import Incident
from headwater.refresh.index_advice import MissingIndex

# What is logged is for the program that we are part of: it decides where it goes, if anywhere.
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
