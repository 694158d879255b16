"""VideoStorm: which knobs each query runs with under its share, from quality-demand profiles and lag (clock of seconds).

types       options, utilities, queries, allocations
rules       how the allocator treats them
lag         the predictor
utility     what a query is worth at any share
maxsum      the largest sum of utilities
maxmin      the smallest utility as large as can be
fair        the baseline
allocate    all of it: shares and options for the next period
mu          profiles corrected by what was measured
search      which configurations to measure for a profile
placement   which machine a query runs on
"""

from scheduler.videostorm.allocate import allocate, fair_allocation
from scheduler.videostorm.mu import Correction
from scheduler.videostorm.rules import Rules
from scheduler.videostorm.search import Search, pareto, pareto_options
from scheduler.videostorm.types import Allocation, Given, Option, Query, Utility

__all__ = [
    "Allocation",
    "Correction",
    "Given",
    "Option",
    "Query",
    "Rules",
    "Search",
    "Utility",
    "allocate",
    "fair_allocation",
    "pareto",
    "pareto_options",
]
