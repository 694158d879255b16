"""A box as a member of a fleet: joining, reporting, doing what is desired, watching another box's camera. It works without one."""
