"""SLAQ: training budget between running jobs by predicted quality gain (H. Zhang, Princeton 2018, chapter 3; SoCC'17)."""

from scheduler.slaq.forecast import Fitting, Forecasts
from scheduler.slaq.reallocate import Reallocation, SlaqJob, decide_shares, reallocate, waited

__all__ = ["Fitting", "Forecasts", "Reallocation", "SlaqJob", "decide_shares", "reallocate", "waited"]
