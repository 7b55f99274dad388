"""Where random examples start."""

from __future__ import annotations

import os
import random

SEED = int(os.environ.get("HEADWATER_SEED") or random.randrange(1 << 32))
"""Shown in the head of each run; HEADWATER_SEED repeats it."""
SHORT_SEED = SEED if os.environ.get("HEADWATER_SEED") or os.environ.get("HEADWATER_SOAK_SECONDS") else 11
"""For what tries the same in each short run; a soak tries something new."""
