"""What users choose from; apart from the catalog, for whoever only asks what there is."""

from __future__ import annotations

from typing import Literal

from headwater.scheduling.tiers import Tier as Tier

Mode = Literal["auto", "differential", "full"]
EngineName = Literal["auto", "postgres", "spark"]
TierChoice = Literal["auto", Tier]
"""`auto` is no tier of its own: the service goes by how often the sources change."""
BucketLength = Literal["minute", "hour"]
"""By which time sums of refreshes are shown."""
