"""Headwater keeps tables fresh: stream tables for any PostgreSQL.

>>> import headwater                                                   # doctest: +SKIP
>>> hw = headwater.connect("postgresql://localhost/shop")              # doctest: +SKIP
>>> hw.create("revenue", "SELECT region, sum(amount) FROM sales GROUP BY region")  # doctest: +SKIP
>>> hw.refresh("revenue")                                              # doctest: +SKIP
"""

import logging

from headwater.advice import MissingIndex
from headwater.api import Headwater, connect
from headwater.catalog import StreamTable
from headwater.config import Setting
from headwater.errors import HeadwaterError
from headwater.explain import Explanation
from headwater.history import HistoryEntry, Outcome
from headwater.jobs import RunningJob
from headwater.monitor import StreamTableStatus
from headwater.repair import Repaired
from headwater.verify import Verification

# What is logged is for the program that we are part of: it decides where it goes, if anywhere.
logging.getLogger("headwater").addHandler(logging.NullHandler())

__all__ = [
    "Explanation",
    "Headwater",
    "HeadwaterError",
    "HistoryEntry",
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
