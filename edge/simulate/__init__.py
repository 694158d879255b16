"""`driftbox simulate`: recorded offers in, virtual time, no model and no pixels. See `scheduler.sim.trace_world` for what it may claim.

source.py         a trace file, the authors' table, or a box's data folder -> Trace
from_journal.py   the last of these
sweep.py          one setting or a grid of them -> results, on one or two processes
plots.py          results -> PNG or SVG
command.py        the command: arguments in, JSON-ready data out
"""

from edge.simulate.command import simulate_command
from edge.simulate.sweep import Setting, link

__all__ = ["Setting", "link", "simulate_command"]
