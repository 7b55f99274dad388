"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headwater

MODULES = ["headwater", *(module.name for module in pkgutil.walk_packages(headwater.__path__, "headwater."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_examples_are_found() -> None:
    finder = doctest.DocTestFinder()
    examples = {
        name: sum(len(test.examples) for test in finder.find(importlib.import_module(name)))
        for name in MODULES
    }
    assert examples["headwater.plan.quoting"] >= 3
    assert examples["headwater.plan.syntax"] >= 2
    assert examples["headwater.plan.deparse"] >= 1
    assert examples["headwater.clock"] >= 1
