"""Every way of reading gives the same rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.readings import READINGS
from tests.engines import LEDGER
from tests.oracle.test_recomputation import SPARK_EXAMPLES, run_examples

from headwater import Headwater

pytestmark = pytest.mark.differential("spark")


@pytest.mark.parametrize("reading", ["as frames", "by tasks", "by keys"])
def test_batches_equal_recomputation(dsn: str, connect: Callable[[str], Headwater], reading: str) -> None:
    """As the property of the same name, whose small tables travel as literals."""
    with READINGS[reading].forced():
        run_examples(dsn, connect, examples=SPARK_EXAMPLES // 3)
    assert any(entry.verdict == "spark" for entry in LEDGER.entries if entry.test == LEDGER.test)
