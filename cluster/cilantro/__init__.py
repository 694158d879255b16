"""Cilantro (OSDI '23): how many GPU-percent each customer gets, learned from what it reports. Card: papers/cilantro.md."""
