"""Fluid: how the trials of a group are packed and widened (papers/fluid.md). Pure."""
