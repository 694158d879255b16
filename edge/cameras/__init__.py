"""Cameras as an operator adds, changes and removes them: where they are kept, how they are found, what a change of one needs."""
