"""Quotas: how many workers of a server's pool one database may use."""

from __future__ import annotations


def allowed(quota: int, pool_size: int, pool_busy: int) -> int:
    """How many workers a database may have at once; a quota of 0 is no limit but the pool itself.

    While less than 80 % of the pool is busy, half as many again as the quota: what nobody uses need not rest.
    From 80 % on exactly the quota, so that the others find workers.
    """
    if quota == 0:
        return pool_size
    quiet = 5 * pool_busy < 4 * pool_size
    return min(pool_size, quota * 3 // 2 if quiet else quota)
