"""Measurements against baselines of the same run: ratios carry over to other machines, seconds do not."""
