"""Other forms of a trained network, for faster serving: see `base` for the seam and docs/compression.md for what was chosen."""
