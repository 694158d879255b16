"""Smaller and cheaper networks: int8, pruning, export. See docs/compression.md."""
