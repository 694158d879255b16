"""Loss curves and how they are fitted, many jobs at once. SLAQ, section 5 of the chapter.

    sublinear   f(k) = 1 / (a k^2 + b k + c) + d     a, b, c, d >= 0     gradient descent, SGD, Lloyd, boosting
    linear      f(k) = A mu^k + c                    A >= 0, 0 < mu < 1  L-BFGS, Newton; A = mu^-b of the text's mu^(k-b) + c

Weighted least squares; a point of age g (0 = newest) has weight decay^(2 g). Losses are divided by the largest one of the window,
so that one set of tolerances does for all jobs. Where the losses go below zero the floor is not 0 but one range below the least.

Both fits go in two steps. A scan fixes the shape: for one mu, or one knee of A / (1 + (k/knee)^p) + d with p = 1, 2, the curve is
linear in its amplitude and its floor; that is non-negative least squares in two variables, solved in closed form for all jobs and
all shapes together. The best few are the starts of a bounded Levenberg-Marquardt iteration on the true residuals, again for all
jobs together. The scan makes the result independent of a guess, the iteration makes it exact on exact data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.curves import nnls_pair

CurveClass = Literal["linear", "sublinear"]

#: Weighted points below this relative weight (as a factor on the residual) are left out of a fit.
_NEGLIGIBLE = 1e-6

#: Windows whose largest loss is below this are flat zero.
_ZERO = 1e-290

_RATES = np.geomspace(2e-4, 6.0, 28)  # -ln mu: from far slower than any window to a factor of 400 per iteration
_KNEES = np.geomspace(0.01, 30.0, 16)  # where a sublinear curve bends, in lengths of the history
_STARTS = 2
_FIRST_ITERATIONS = 6  # of every start; then the best of them goes on alone

#: Jobs fitted together: their arrays stay in the processor's cache and a thousand jobs need no more memory than these.
_CHUNK = 128
_ITERATIONS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Sublinear:
    """f(k) = 1 / (a k^2 + b k + c) + d, k counted from the job's first loss = 1."""

    a: float
    b: float
    c: float
    d: float
    kind: Literal["sublinear"] = "sublinear"

    def at(self, k: float) -> float:
        """Loss after iteration k (k may be fractional)."""
        below = (self.a * k + self.b) * k + self.c
        return (1.0 / below if below > 0 else 0.0) + self.d

    @property
    def asymptote(self) -> float:
        """Where the loss ends: d, or the present level of a curve that does not fall."""
        return self.d if self.a > 0 or self.b > 0 else self.at(1.0)

    @property
    def parameters(self) -> dict[str, float]:
        return {"a": self.a, "b": self.b, "c": self.c, "d": self.d}


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """f(k) = amplitude * mu^(k - k0) + c; k0 is the first iteration of the window, which keeps long histories from overflowing."""

    amplitude: float
    mu: float
    c: float
    k0: float = 0.0
    kind: Literal["linear"] = "linear"

    def at(self, k: float) -> float:
        """Loss after iteration k (k may be fractional)."""
        return self.amplitude * self.mu ** (k - self.k0) + self.c

    @property
    def asymptote(self) -> float:
        """Where the loss ends: c."""
        return self.c

    @property
    def shift(self) -> float:
        """b of the text's mu^(k - b) + c; infinite for a flat curve."""
        if self.amplitude <= 0:
            return -math.inf
        return self.k0 - math.log(self.amplitude) / math.log(self.mu)

    @property
    def parameters(self) -> dict[str, float]:
        return {"amplitude": self.amplitude, "mu": self.mu, "k0": self.k0, "c": self.c}


@dataclass(frozen=True, kw_only=True, slots=True)
class Damped:
    """The fall-back: each further step is `ratio` times the one before, starting from `step` = the averaged delta (>= 0).

    f(k_last + n) = last - step * r (1 - r^n) / (1 - r): convex in n and bounded, unlike a delta that is repeated for ever.
    """

    last: float
    step: float
    k_last: float
    ratio: float = 0.8
    kind: Literal["damped"] = "damped"

    def at(self, k: float) -> float:
        """Loss after iteration k (k may be fractional); the last loss before k_last."""
        n = max(0.0, k - self.k_last)
        return self.last - self.step * self.ratio * (1.0 - self.ratio**n) / (1.0 - self.ratio)

    @property
    def asymptote(self) -> float:
        """Where the loss ends if the steps go on shrinking like that."""
        return self.last - self.step * self.ratio / (1.0 - self.ratio)

    @property
    def parameters(self) -> dict[str, float]:
        return {"step": self.step, "ratio": self.ratio}


Curve = Sublinear | Linear | Damped


def fit_curves(
    histories: Sequence[Sequence[float]],
    kind: CurveClass,
    *,
    decay: float = 0.8,
    window: int = 100,
    floors: Sequence[float | None] | None = None,
) -> list[Sublinear | Linear]:
    """One curve of class `kind` per history.

    histories: losses, oldest first, at least one each, all finite. decay: weight of a point of age g is decay^(2 g), 0 < decay <= 1.
    window: newest points used. floors: known asymptote per history for the linear class (section 7), None: fitted.
    Returns curves in loss units; they never rise.
    """
    known = list(floors) if floors is not None else [None] * len(histories)
    fit = _fit_linear if kind == "linear" else _fit_sublinear
    curves: list[Sublinear | Linear] = []
    for first in range(0, len(histories), _CHUNK):
        part = slice(first, first + _CHUNK)
        curves += fit(_Group.of(histories[part], known[part], decay, window))
    return curves


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Histories side by side, left aligned, scaled. y, root_w: (J, N), root_w = decay^age and 0 where there is no point."""

    y: np.ndarray
    root_w: np.ndarray
    first_k: np.ndarray  # (J,) iteration of the first column
    last_k: np.ndarray  # (J,)
    floor: np.ndarray  # (J,) what was subtracted before scaling
    scale: np.ndarray  # (J,) what it was divided by
    pinned: np.ndarray  # (J,) bool: the floor is the asymptote

    @staticmethod
    def of(histories: Sequence[Sequence[float]], known: Sequence[float | None], decay: float, window: int) -> _Group:
        reach = window if decay >= 1 else min(window, 1 + math.ceil(math.log(_NEGLIGIBLE) / math.log(decay)))
        lengths = np.array([len(h) for h in histories])
        used = np.minimum(lengths, max(1, reach))
        width = int(used.max())
        y, age = np.zeros((len(histories), width)), np.full((len(histories), width), -1.0)
        for j, (history, n) in enumerate(zip(histories, used, strict=True)):
            y[j, :n] = history[len(history) - n :]
            age[j, :n] = np.arange(n - 1, -1, -1)
        there = age >= 0
        least = np.where(there, y, np.inf).min(1)
        most = np.where(there, y, -np.inf).max(1)
        pinned = np.array([f is not None for f in known])
        own_floor = np.where(least >= 0, 0.0, least - (most - least))
        floor = np.array([own_floor[j] if f is None else f for j, f in enumerate(known)])
        y = np.where(there, np.maximum(y - floor[:, None], 0.0), 0.0)
        scale = y.max(1)
        scale = np.where(scale > _ZERO, scale, 1.0)
        return _Group(
            y=y / scale[:, None], root_w=np.where(there, decay ** np.maximum(age, 0.0), 0.0), first_k=lengths - used + 1.0,
            last_k=lengths.astype(float), floor=floor, scale=scale, pinned=pinned,
        )  # fmt: skip


def _fit_linear(group: _Group) -> list[Sublinear | Linear]:
    """Scan of mu, then Levenberg-Marquardt in (amplitude, -ln mu, c)."""
    jobs, width = group.y.shape
    i = np.arange(width, dtype=float)
    powers = np.exp(-_RATES[:, None] * i)  # (S, N)
    x = (group.root_w[:, None, :] * powers).reshape(-1, width)
    free_c = np.where(group.pinned, 0.0, 1.0)
    ones = np.repeat(group.root_w * free_c[:, None], len(_RATES), axis=0)
    target = np.repeat(group.root_w * group.y, len(_RATES), axis=0)
    amplitude, c = nnls_pair(x, ones, target)
    start = np.stack([amplitude, np.tile(_RATES, jobs), c], axis=1)

    def model(p: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        power = np.exp(-p[:, 1:2] * i)
        slopes = np.stack([power, -p[:, 0:1] * i * power, np.broadcast_to(free_c[rows][:, None], power.shape)], axis=2)
        return p[:, 0:1] * power + (p[:, 2] * free_c[rows])[:, None], slopes

    lower, upper = np.array([0.0, 1e-6, 0.0]), np.array([np.inf, 12.0, np.inf])
    best = _refine(model, [start.reshape(jobs, -1, 3)], group, lower, upper)
    return [
        Linear(
            amplitude=float(p[0] * scale),
            mu=math.exp(-float(p[1])),
            c=float(p[2] * scale * free + floor),
            k0=float(k0),
        )
        for p, scale, free, floor, k0 in zip(best, group.scale, free_c, group.floor, group.first_k, strict=True)
    ]


def _fit_sublinear(group: _Group) -> list[Sublinear | Linear]:
    """Scan of the knee in A / (1 + t/knee) + d and A / (1 + (t/knee)^2) + d, then Levenberg-Marquardt in (a, b, c, d), where t is
    k in units of the last iteration."""
    jobs, width = group.y.shape
    there = group.root_w > 0
    t = np.where(there, (group.first_k[:, None] + np.arange(width)) / group.last_k[:, None], 0.0)  # (J, N), 0-1
    root_w = np.repeat(group.root_w, len(_KNEES), axis=0)
    target = root_w * np.repeat(group.y, len(_KNEES), axis=0)
    knee = np.tile(_KNEES, jobs)
    bent = np.repeat(t, len(_KNEES), axis=0) / knee[:, None]  # (J*S, N)
    starts = []
    for power in (1, 2):
        amplitude, d = nnls_pair(root_w / (1.0 + bent**power), root_w, target)
        c = 1.0 / np.maximum(amplitude, 1e-3)
        slope = c / knee**power
        ab = [np.zeros_like(slope), slope] if power == 1 else [slope, np.zeros_like(slope)]
        starts.append(np.stack([*ab, c, d], axis=1).reshape(jobs, -1, 4))

    def model(p: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k = t[rows]
        value = 1.0 / np.maximum((p[:, 0:1] * k + p[:, 1:2]) * k + p[:, 2:3], 1e-6)
        outer = -value * value
        return value + p[:, 3:4], np.stack([outer * k * k, outer * k, outer, np.ones_like(k)], axis=2)

    lower, upper = np.array([0.0, 0.0, 1e-6, 0.0]), np.full(4, np.inf)
    best = _refine(model, starts, group, lower, upper)
    return [
        Sublinear(
            a=float(p[0] / (scale * last * last)),
            b=float(p[1] / (scale * last)),
            c=float(p[2] / scale),
            d=float(p[3] * scale + floor),
        )
        for p, scale, floor, last in zip(best, group.scale, group.floor, group.last_k, strict=True)
    ]


#: (parameters (M, P), job of each row (M,)) -> values (M, N), slopes (M, N, P)
_Model = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _refine(model: _Model, families: Sequence[np.ndarray], group: _Group, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The best parameters per job, (J, P), from families of starts (J, S, P): the _STARTS best of each family are tried further,
    because the family that is better at its starts is not always better at its end."""
    begun = [_best_starts(model, family, group, lower, upper) for family in families]
    jobs, _, size = begun[0].shape
    p = np.concatenate(begun, axis=1)
    rows = np.repeat(np.arange(jobs), p.shape[1])
    p, error = _levenberg(model, p.reshape(-1, size), rows, group, lower, upper, _FIRST_ITERATIONS)
    winner = error.reshape(jobs, -1).argmin(axis=1)
    p = p.reshape(jobs, -1, size)[np.arange(jobs), winner]
    return _levenberg(model, p, np.arange(jobs), group, lower, upper, _ITERATIONS)[0]


def _best_starts(model: _Model, starts: np.ndarray, group: _Group, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """(J, _STARTS, P): those with the least error."""
    jobs, count, size = starts.shape
    every = np.repeat(np.arange(jobs), count)
    inside = np.clip(starts.reshape(-1, size), lower, upper)
    error = _squares(model(inside, every)[0], every, group).reshape(jobs, count)
    kept = np.argsort(error, axis=1, kind="stable")[:, :_STARTS]
    return inside.reshape(jobs, count, size)[np.arange(jobs)[:, None], kept]


def _squares(values: np.ndarray, rows: np.ndarray, group: _Group) -> np.ndarray:
    residual = group.root_w[rows] * (values - group.y[rows])
    return np.einsum("mn,mn->m", residual, residual)


def _levenberg(
    model: _Model,
    p: np.ndarray,
    rows: np.ndarray,
    group: _Group,
    lower: np.ndarray,
    upper: np.ndarray,
    iterations: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Bounded Levenberg-Marquardt on all rows together; (parameters, squared errors).

    A parameter at its bound whose slope points outward is held there for the step; the damping scales with the curvature
    (Marquardt) and moves per row. Rows that no longer move leave the iteration.
    """
    p = p.copy()
    error = _squares(model(p, rows)[0], rows, group)
    damping = np.full(len(p), 1e-3)
    active = np.arange(len(p))
    for _ in range(iterations):
        here, row = p[active], rows[active]
        values, slopes = model(here, row)
        w = group.root_w[row]
        slopes = slopes * w[:, :, None]
        slopes_t = slopes.transpose(0, 2, 1)
        gradient = np.matmul(slopes_t, (w * (values - group.y[row]))[:, :, None])[:, :, 0]
        curvature = np.matmul(slopes_t, slopes)
        held = ((here <= lower) & (gradient > 0)) | ((here >= upper) & (gradient < 0))
        gradient = np.where(held, 0.0, gradient)
        curvature = np.where(held[:, :, None] | held[:, None, :], 0.0, curvature)
        diagonal = np.einsum("mii->mi", curvature)
        diagonal += diagonal * damping[active][:, None] + np.where(held, 1.0, 1e-14)
        moved = np.clip(here - np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0], lower, upper)
        tried = _squares(model(moved, row)[0], row, group)
        better = tried < error[active]
        gained = error[active] - tried
        damping[active] = np.clip(np.where(better, damping[active] / 5, damping[active] * 4), 1e-12, 1e12)
        p[active[better]], error[active[better]] = moved[better], tried[better]
        # a row is done when an accepted step changes nothing of note, or when no step helps any more
        small = better & (gained <= 1e-7 * tried)
        stuck = ~better & (damping[active] > 1e9)
        active = active[~(small | stuck | (error[active] < 1e-26))]
        if len(active) == 0:
            break
    return p, error
