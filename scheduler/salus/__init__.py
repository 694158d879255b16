"""Salus: whose iteration runs next, and whether its memory fits (papers/salus.md). Pure: told the time, owns no clock and no thread."""

from scheduler.salus.lanes import (
    Decision,
    LaneEvent,
    LaneRules,
    LaneTable,
    MemoryLane,
    Resident,
    Step,
    best_cap,
    find_lane,
    replay,
)
from scheduler.salus.policies import POLICIES, LaneJob, LanePolicy, Pick, lane_policy
from scheduler.salus.types import MemoryNeed, Role

__all__ = [
    "POLICIES",
    "Decision",
    "LaneEvent",
    "LaneJob",
    "LanePolicy",
    "LaneRules",
    "LaneTable",
    "MemoryLane",
    "MemoryNeed",
    "Pick",
    "Resident",
    "Role",
    "Step",
    "best_cap",
    "find_lane",
    "lane_policy",
    "replay",
]
