"""The delta of a block as a sum of terms.

The delta of a join telescopes: with the inputs in order, each changed input gives one term in which it
stands with its delta, the changed inputs before it as they are now, and those after it as they were.

    Δ(A ⋈ B ⋈ C) = ΔA ⋈ B_old ⋈ C_old  +  A ⋈ ΔB ⋈ C_old  +  A ⋈ B ⋈ ΔC

An input that did not change has no term and is the same now and then. Old states are not stored: they are
the rows of now less the delta, with weights, which a bilinear operator takes as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from headwater.plan.operators import Node, Select


class Version(Enum):
    """Which version of an input a term reads."""

    NEW = "now"
    OLD = "before"
    DELTA = "delta"


Term = tuple[Version, ...]
"""For each input of a block the version to read."""


def terms(block: Select, changed: Callable[[Node], bool]) -> tuple[Term, ...]:
    """The terms of a block's delta, given which of its inputs changed."""
    positions = [position for position, item in enumerate(block.inputs) if changed(item.node)]
    return tuple(
        tuple(_version(position, pivot, positions) for position in range(len(block.inputs)))
        for pivot in positions
    )


def _version(position: int, pivot: int, changed: list[int]) -> Version:
    if position == pivot:
        return Version.DELTA
    return Version.OLD if position > pivot and position in changed else Version.NEW
