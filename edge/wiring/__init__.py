"""Builds a box from its configuration and runs it: the only place that names concrete classes."""
