"""The scenes of `scripts/fleet_demo.py`, one per module, over `stage.py` (cameras, boxes) and `demo.py` (what an owner does)."""
