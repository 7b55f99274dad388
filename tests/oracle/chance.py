"""Where random examples start."""

from __future__ import annotations

import os
import random

SEED = int(os.environ.get("HEADWATER_SEED") or random.randrange(1 << 32))
"""Shown in the head of each run; HEADWATER_SEED repeats it."""
