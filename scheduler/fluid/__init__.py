"""Fluid: how the trials of a group are packed and widened (P. Yu, University of Michigan 2022, chapter 3; MLSys 2021). Pure.

types       trials, groups, the pool, and what a width costs (eq. 3.2)
packing     c and d from measured times (eq. 3.1), c within memory
observe     c found out while the trials run, whoever disturbs the measuring
widths      StaticFluid, DynamicFluid, what happens when GPUs vanish
layout      who sits on which GPU
simulate    the course of a group; FIFO and one by one beside it
plan        which of them a group gets
groups      grid, random, successive halving, Hyperband, ASHA, PBT as sequences of groups
"""

from scheduler.fluid.layout import Layout
from scheduler.fluid.packing import alpha_of, beta_of, packing_gains, share_max, width_max
from scheduler.fluid.plan import GroupPlan, leftover_widths, plan_group
from scheduler.fluid.simulate import AS_PRINTED, Course, Rules, fifo, fluid, one_by_one
from scheduler.fluid.types import Pool, Trial, TrialGroup, Width, speed, time_s
from scheduler.fluid.widths import dynamic_widths, static_widths

__all__ = [
    "AS_PRINTED",
    "Course",
    "GroupPlan",
    "Layout",
    "Pool",
    "Rules",
    "Trial",
    "TrialGroup",
    "Width",
    "alpha_of",
    "beta_of",
    "dynamic_widths",
    "fifo",
    "fluid",
    "leftover_widths",
    "one_by_one",
    "packing_gains",
    "plan_group",
    "share_max",
    "speed",
    "static_widths",
    "time_s",
    "width_max",
]
