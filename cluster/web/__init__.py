"""The fleet view: boxes, customers, grants, placements, rollouts, history."""
