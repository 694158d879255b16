"""Block permutation: how far apart two looks at one unchanged scene would lie by chance.

Frames of video resemble their neighbours, so thresholds made for independent samples alarm all the time. Here a look is cut into
blocks of neighbouring frames and whole blocks change sides (Künsch 1989 for blocks; Good 2005, chapter 3, for permutation): what
frames of a block share stays together. What we changed, and why:
- Each look is centred on its own mean before its blocks are dealt, so that a drift does not raise its own threshold. A dozen
  blocks then look calmer than they are; Student's t has the correction.
- What still reaches from block to block is measured as first-order autocorrelation of the frames, and widens the threshold too
  (`margin`). The textbooks take longer blocks, which a look of two dozen frames does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from math import comb

import numpy as np
from scipy import stats

#: A threshold is widened no more than this: no still scene of ours was further from itself than 2.6 unwidened thresholds
#: (docs/drift.md), and a look whose frames are all alike must not become blind.
MAX_MARGIN = 3.0
#: Standard errors of the autocorrelation that are added to its estimate: an underestimate alarms, an overestimate only waits.
_CAUTION = 0.5
#: Autocorrelation that an estimate may reach: at 1 the mean of a look would mean nothing.
_MAX_PHI = 0.95


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Two looks, laid end to end, and the ways in which their blocks could have been dealt out.

    n_reference, n_current: frames of each; blocks: into how many each is cut; splits: how many ways are looked at (all when there are
    no more, else as many drawn with a fixed seed). Raises ValueError when a look has fewer frames than blocks."""

    n_reference: int
    n_current: int
    blocks: int
    splits: int = 924

    def __post_init__(self) -> None:
        if min(self.n_reference, self.n_current) < self.blocks or self.blocks < 2:
            raise ValueError(f"{self.n_reference} and {self.n_current} frames cannot be cut into {self.blocks} blocks each")

    @cached_property
    def block_of(self) -> np.ndarray:
        """int64 (n_reference + n_current,): block of each frame; the reference's come first."""
        first = _labels(self.n_reference, self.blocks)
        return np.concatenate([first, self.blocks + _labels(self.n_current, self.blocks)])

    @cached_property
    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """(reference side, current side), float64 (1 + splits, frames) each: every row averages the frames of a side. Row 0 is the
        truth, the others are deals of the blocks."""
        dealt = np.concatenate([_truth(self.blocks), _deals(self.blocks, self.splits)])  # (1 + S, 2 * blocks)
        members = dealt[:, self.block_of].astype(float)  # (1 + S, frames)
        return members / members.sum(axis=1, keepdims=True), (1 - members) / (1 - members).sum(axis=1, keepdims=True)

    def centred(self, values: np.ndarray) -> np.ndarray:
        """`values` (frames, features) less the mean of their own look."""
        looks = values[: self.n_reference], values[self.n_reference :]
        return np.concatenate([look - look.mean(axis=0) for look in looks])

    def margin(self, values: np.ndarray, alpha: float) -> float:
        """By how much two looks at an unchanged scene may differ more than deals of their centred blocks, from 1 to MAX_MARGIN.
        values: (frames, features), whose autocorrelation counts."""
        phi = _phi((values[: self.n_reference], values[self.n_reference :]))
        phi = min(_MAX_PHI, phi + _CAUTION * np.sqrt((1 - phi**2) / len(values)))
        beyond = _beyond_deals(phi, (self.n_reference + self.n_current) / (2 * self.blocks), self.blocks)
        few = stats.t.ppf(1 - alpha / 2, 2 * (self.blocks - 1)) / stats.norm.ppf(1 - alpha / 2)
        return float(min(MAX_MARGIN, beyond * few))


def threshold_of(distances: np.ndarray, alpha: float) -> float:
    """The value that a deal exceeds with probability `alpha` at most. distances: of row 0 (the truth) and of every deal."""
    deals = np.sort(distances[1:])[::-1]
    return float(deals[min(len(deals) - 1, int(alpha * len(deals) + 1e-9))])


def fewest_blocks(alpha: float) -> int:
    """Blocks a side without which no deal could be as rare as `alpha` (a deal and its mirror image are as far apart)."""
    blocks = 2
    while 2 / comb(2 * blocks, blocks) > alpha:
        blocks += 1
    return blocks


def _labels(frames: int, blocks: int) -> np.ndarray:
    return np.repeat(np.arange(blocks), [len(part) for part in np.array_split(np.arange(frames), blocks)])


def _truth(blocks: int) -> np.ndarray:
    return (np.arange(2 * blocks) < blocks)[None, :]


@cache
def _deals(blocks: int, splits: int) -> np.ndarray:
    """bool (S, 2 * blocks): which blocks make up the reference side, in every way or in `splits` ways drawn."""
    if comb(2 * blocks, blocks) <= splits:
        chosen = np.array(list(combinations(range(2 * blocks), blocks)))
    else:
        rng = np.random.default_rng(0)  # a threshold must not change from call to call
        chosen = np.argsort(rng.random((splits, 2 * blocks)), axis=1)[:, :blocks]
    dealt = np.zeros((len(chosen), 2 * blocks), bool)
    np.put_along_axis(dealt, chosen, True, axis=1)
    return dealt


def _phi(looks: tuple[np.ndarray, ...]) -> float:
    """First-order autocorrelation of vectors within looks, pooled over features, 0-0.95, without its small-sample bias
    -(1 + 3 phi) / n (Kendall 1954)."""
    centred = [look - look.mean(axis=0) for look in looks]
    power = sum(float((c * c).sum()) for c in centred)
    if power <= 0:
        return 0.0
    raw = sum(float((c[1:] * c[:-1]).sum()) for c in centred) / power
    n = sum(len(look) for look in looks) / len(looks)
    # The estimate divides n - 1 products by n squares: 1/n more of it is missing.
    return float(np.clip((raw * n / (n - 1) * n + 1) / max(1.0, n - 3), 0.0, _MAX_PHI))


def _mean_variance(phi: float, n: float) -> float:
    """Variance of the mean of n neighbours of an AR(1) sequence of variance 1."""
    if phi <= 0 or n <= 1:
        return 1.0 / n
    return (1 + phi) / (1 - phi) / n - 2 * phi * (1 - phi**n) / (n * n * (1 - phi) ** 2)


def _beyond_deals(phi: float, per_block: float, blocks: int) -> float:
    """Standard deviation of the difference of two looks' means over that of dealt, centred blocks, for AR(1) frames."""
    of_block, of_look = _mean_variance(phi, per_block), _mean_variance(phi, per_block * blocks)
    dealt = (of_block - of_look) / blocks
    return float(np.sqrt(of_look / dealt)) if dealt > 0 else MAX_MARGIN
