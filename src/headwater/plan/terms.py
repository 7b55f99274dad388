"""The delta of a block as a sum of terms.

The delta of a join telescopes: with the inputs in order, each changed input gives one term in which its delta
takes its place, with the changed inputs before it as they are now, and those after it as they were.

    Δ(A ⋈ B ⋈ C) = ΔA ⋈ B_old ⋈ C_old  +  A ⋈ ΔB ⋈ C_old  +  A ⋈ B ⋈ ΔC

Any order will do. The inputs with the most changed rows come first: the terms after an input's own never read
its old state, and reading that costs as much as its delta is large.

An input that did not change has no term and is the same now and before. Old states are not stored: an old
state is the current rows minus the delta, with weights, which a bilinear operator can read directly.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from headwater.plan.operators import Node, Select


class Version(Enum):
    """The version of an input that a term reads."""

    NEW = "now"
    OLD = "before"
    DELTA = "delta"


Term = tuple[Version, ...]
"""The version to read of each input of a block."""


def terms(
    block: Select, changed: Callable[[Node], bool], size: Callable[[Node], int] = lambda _: 0
) -> tuple[Term, ...]:
    """Return the terms of a block's delta, given which of its inputs changed, and in about how many rows."""
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
