"""Quotas: how many workers of a server's pool one database may use."""

from __future__ import annotations


def allowed(quota: int, pool_size: int, pool_busy: int) -> int:
    """Return how many workers a database may have at once; with a quota of 0 only the pool limits it.

    While less than 80 % of the pool is busy it may have 1.5 times its quota, so that idle workers are used.
    From 80 % on it may have exactly its quota, so that the others find workers.
    """
    if quota == 0:
        return pool_size
    quiet = 5 * pool_busy < 4 * pool_size
    return min(pool_size, quota * 3 // 2 if quiet else quota)
