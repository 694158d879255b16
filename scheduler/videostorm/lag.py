"""How far behind a query will be: the predictor of the card's section 6 (Model-Predictive Control), with numbers or arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def predicted_lag_s(lag_s: Any, share_pct: Any, demand_pct: Any, horizon_s: Any, mu: Any = 1.0) -> Any:
    """L(t+T) = max(0, L(t) + T - T * a / (D * mu)): seconds of video that wait after `horizon_s`.

    share_pct: a; demand_pct: D, share that keeps up with the live stream; mu: real over profiled demand. Numbers or arrays that
    broadcast. The text does not clamp: nothing can be processed before it was filmed. A demand of 0 clears any backlog.
    """
    return np.maximum(0.0, lag_s + horizon_s - horizon_s * served_frac(share_pct, demand_pct, mu))


def served_frac(share_pct: Any, demand_pct: Any, mu: Any = 1.0) -> Any:
    """a / (D * mu): seconds of video processed per second. Infinite where nothing is demanded."""
    need_pct = np.asarray(demand_pct, float) * mu
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.asarray(share_pct, float) / need_pct
    return np.where(need_pct > 0, rate, np.inf)
