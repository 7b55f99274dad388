"""The delta of a block as a sum of terms.

The delta of a join telescopes: with the inputs in order, each changed input gives one term in which it
stands with its delta, the changed inputs before it as they are now, and those after it as they were.

    Δ(A ⋈ B ⋈ C) = ΔA ⋈ B_old ⋈ C_old  +  A ⋈ ΔB ⋈ C_old  +  A ⋈ B ⋈ ΔC

Any order will do. The inputs with the most changed rows come first, for an input is never read as it was by
the terms of those after it, and that is dear in proportion to its delta.

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


def terms(
    block: Select, changed: Callable[[Node], bool], size: Callable[[Node], int] = lambda _: 0
) -> tuple[Term, ...]:
    """The terms of a block's delta, given which of its inputs changed, and in about how many rows."""
    positions = [position for position, item in enumerate(block.inputs) if changed(item.node)]
    positions.sort(key=lambda position: -size(block.inputs[position].node))
    return tuple(
        tuple(
            Version.DELTA
            if position == pivot
            else Version.OLD
            if position in positions[rank:]
            else Version.NEW
            for position in range(len(block.inputs))
        )
        for rank, pivot in enumerate(positions)
    )
