"""SLAQ: training budget between running jobs by predicted quality gain (H. Zhang, Princeton 2018, chapter 3; SoCC'17)."""

from scheduler.slaq.forecast import Fitting, Forecasts
from scheduler.slaq.reallocate import JobShare, Reallocation, SlaqJob, decide_shares, reallocate, waited

__all__ = ["Fitting", "Forecasts", "JobShare", "Reallocation", "SlaqJob", "decide_shares", "reallocate", "waited"]
