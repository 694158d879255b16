"""`driftbox decide` for the systems of the fleet; found by the command line through entry points (pyproject.toml, group
`driftbox.decide`), because boxes and clusters do not import each other."""
