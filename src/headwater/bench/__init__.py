"""Measurements against baselines in the same run: ratios carry over to other machines, seconds do not."""
