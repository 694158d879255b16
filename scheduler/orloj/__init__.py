"""Orloj: which requests form the next batch, when run times vary with content (ms clock)."""
