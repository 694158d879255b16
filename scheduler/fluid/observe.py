"""How many trials at once pay, found out on the trials themselves while they run, also where others disturb the measuring. Pure.

Who runs them asks which lanes are to run now (`turn`), and says what each iteration took. Eq. 3.1 wants the times of an iteration with
p - 1 and with p trials at once. One comparison of the two is worth little on a machine that does other things too: whoever takes a core
for half a second makes one of the two look bad. So:

    a round    some iterations with p - 1 at once and some with p, a moment apart, the next round the other way round. Its gain O^p is of
               iterations of the same kind, of trials of the same shape; of each the median, so that one long iteration does not count
    a verdict  'yes' when the rounds that say so lead by LEAD_YES, 'no' when those lead by LEAD_NO, after ROUNDS_MOST by majority; 'no'
               at once when the first rounds, LOST_MOST of them, all lost time: more of them would lose more
    a level    p = 2, 3, ... until the first that does not pay: c = p - 1
    again      nothing is settled for good: after a while p = c + 1 is looked at again, and p = c too. Each look that changes nothing
               doubles the while

'Yes' is believed sooner than 'no': trials at once that do not pay take about as long as one after the other, while trials that run one
by one and need not cost up to (c - 1) / c of the time. For the same reason c + 1 is looked at again soon, c rarely.

How much wider trials gain is asked in the same way (`Scaling`): the same batches on one device and on two, in turns; and whenever a real
trial has run an epoch on one and another on more.

What we changed: the text profiles once, on resources set apart for it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from scheduler.fluid.packing import GAIN_MIN, beta_of, packing_gains, widest
from scheduler.fluid.types import ROUNDING

#: Iterations of each lane of a turn that do not count, because the number of trials at once has just changed, and those that do. An even
#: number: where every second iteration updates the weights, the median of four is between the two kinds, that of three is either.
WARM, COUNTED = 1, 4
LEAD_YES, LEAD_NO, ROUNDS_MOST, LOST_MOST = 2, 3, 7, 2
#: Iterations of a look after which it is given up (trials that end too soon to be compared, say).
LOOK_MOST = 250
#: Iterations until c + 1, and until c, is looked at again for the first time.
AGAIN_MORE, AGAIN_FEWER = 50, 400
#: Newest comparisons of widths that count; trials until a width that did not pay is measured again for the first time.
COMPARED, AGAIN_WIDE = 9, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Of one look. level: p; gains: O^p of each round; pays: whether p at once do, by these."""

    level: int
    gains: tuple[float, ...]
    pays: bool


@dataclass
class _Round:
    """Times of one round: with one trial less, and with all; by what was done, of what shape of trial."""

    turns: list[tuple[int, ...]]
    fewer: dict[Hashable, list[float]] = field(default_factory=dict)
    more: dict[Hashable, list[float]] = field(default_factory=dict)

    def ratio(self) -> float | None:
        """T^p / T^(p-1), over what both have; None: nothing."""
        common = self.fewer.keys() & self.more.keys()
        if not common:
            return None
        together_s, before_s = (sum(statistics.median(times[key]) for key in common) for times in (self.more, self.fewer))
        return together_s / before_s if before_s > 0 else None


class Packing:
    """Changes in place. most: lanes there are. chosen: c, how many are to run when no turn says otherwise; verdicts: so far."""

    def __init__(self, most: int, *, gain_min: float = GAIN_MIN) -> None:
        self.most, self.chosen = most, 1
        self.verdicts: list[Verdict] = []
        self._gain_min = gain_min
        self._ratios: dict[int, float] = {}
        self._alone_s: dict[Hashable, float] = {}
        self._again = {"more": AGAIN_MORE, "fewer": AGAIN_FEWER}
        self._until = dict(self._again)
        self._level = self._seen = self._rounds = 0
        self._round = _Round(turns=[])
        self._done: dict[int, int] = {}
        self._gains: list[float] = []
        self._of_rounds: list[float] = []
        if most > 1:
            self._look(2)

    @property
    def turn(self) -> tuple[int, ...] | None:
        """The lanes that are to run now, and no others, because they are compared; None: any `chosen`."""
        return self._round.turns[0] if self._level else None

    def progress(self, lane: int) -> int:
        """Comparable iterations that a lane has done in this turn."""
        return self._done.get(lane, 0)

    def done(self, lane: int, key: Hashable, seconds: float | None) -> bool:
        """An iteration is over. key: what was done, of what shape of trial; seconds: from wanting it to its end; None: it cannot be
        compared, since other lanes than those of the turn were running for part of it. True: the turn, or c, is another one now."""
        before = (self.turn, self.chosen)
        if not self._level:
            self._rest()
            return before != (self.turn, self.chosen)
        self._seen += 1
        if seconds is not None and lane in self._round.turns[0]:
            self._record(lane, key, seconds)
        if self._level and self._seen >= LOOK_MOST:
            self.give_up()
        return before != (self.turn, self.chosen)

    def give_up(self) -> None:
        """The look that is going on ends with what it has; with nothing, c stays."""
        if self._level:
            self._conclude(sum(map(self._says_yes, self._gains)) * 2 > len(self._gains) if self._gains else None)

    def levels(self) -> list[float]:
        """avg(T^1), avg(T^2), ... by the newest look at each."""
        found = [statistics.mean(self._alone_s.values()) if self._alone_s else 1.0]
        while (ratio := self._ratios.get(len(found) + 1)) is not None:
            found.append(found[-1] * ratio)
        return found

    # --- one look -----------------------------------------------------------------------------------------------------

    def _look(self, level: int) -> None:
        self._level, self._seen, self._rounds = level, 0, 0
        self._gains, self._of_rounds = [], []
        self._next_round()

    def _next_round(self) -> None:
        level = self._level
        fewer = [(0,), (1,)] if level == 2 else [tuple(range(level - 1))]
        turns = [*fewer, tuple(range(level))]
        self._round = _Round(turns=turns if self._rounds % 2 == 0 else turns[::-1])
        self._rounds += 1
        self._done = {}

    def _record(self, lane: int, key: Hashable, seconds: float) -> None:
        now = self._round.turns[0]
        self._done[lane] = self._done.get(lane, 0) + 1
        if self._done[lane] > WARM:
            times = self._round.more if len(now) == self._level else self._round.fewer
            times.setdefault(key, []).append(seconds)
        if all(self._done.get(n, 0) >= WARM + COUNTED for n in now):
            self._next_turn()

    def _next_turn(self) -> None:
        self._round.turns.pop(0)
        self._done = {}
        if self._round.turns:
            return
        ratio = self._round.ratio()
        if self._level == 2:
            self._alone_s |= {key: statistics.median(times) for key, times in self._round.fewer.items()}
        if ratio is not None:
            self._of_rounds.append(ratio)
            self._gains.append(packing_gains(_with(ratio, self._level))[-1])
        verdict = self._verdict()
        if verdict is None:
            self._next_round()
        else:
            self._conclude(verdict)

    def _verdict(self) -> bool | None:
        """None: another round."""
        if len(self._gains) == LOST_MOST and max(self._gains) < -self._gain_min:
            return False
        return verdict_of([self._says_yes(gain) for gain in self._gains])

    def _says_yes(self, gain: float) -> bool:
        return gain > self._gain_min + ROUNDING

    # --- what follows from it -----------------------------------------------------------------------------------------

    def _conclude(self, pays: bool | None) -> None:
        """pays: None: nothing is known of this level, as before."""
        level, self._level = self._level, 0
        if pays is not None:
            self.verdicts.append(Verdict(level=level, gains=tuple(self._gains), pays=pays))
            self._ratios[level] = statistics.median(self._of_rounds)
            if not pays:  # what was known of more than that is of another time
                self._ratios = {p: ratio for p, ratio in self._ratios.items() if p <= level}
            before, self.chosen = self.chosen, level if pays else min(self.chosen, level - 1)
            if pays and level > before and level < self.most:
                self._look(level + 1)
                return
        which = "more" if level > self.chosen else "fewer"
        if pays is None or len([v for v in self.verdicts if v.level == level]) > 1:
            self._again[which] *= 2
        self._until = dict(self._again)

    def _rest(self) -> None:
        for which in self._until:
            self._until[which] -= 1
        if self.chosen < self.most and self._until["more"] <= 0:
            self._look(self.chosen + 1)
        elif self.chosen > 1 and self._until["fewer"] <= 0:
            self._look(self.chosen)


def verdict_of(rounds: Sequence[bool]) -> bool | None:
    """What rounds say together; None: too little yet."""
    yes = sum(rounds)
    no = len(rounds) - yes
    if yes - no >= LEAD_YES:
        return True
    if no - yes >= LEAD_NO:
        return False
    return yes > no if len(rounds) >= ROUNDS_MOST else None


class Scaling:
    """beta of one architecture's trials, and how wide they may be. Changes in place. most: devices there are."""

    def __init__(self, most: int, *, gain_min: float = GAIN_MIN) -> None:
        self.most, self._gain_min = most, gain_min
        self._betas: deque[float] = deque(maxlen=COMPARED)
        self._rounds: list[bool] = []
        self._looks, self._left = 0, 0

    @property
    def asks(self) -> bool:
        """Whether a comparison is wanted now."""
        return self.most > 1 and self._left <= 0

    @property
    def beta(self) -> float:
        """Of the newest comparisons; 1 before the first."""
        return statistics.median(self._betas) if self._betas else 1.0

    @property
    def width_max(self) -> int:
        """d; 1 as long as nothing was compared."""
        return widest(self.beta, most=self.most, gain_min=self._gain_min) if self._betas else 1

    def compared(self, one_s: float, wide_s: float, *, width: int = 2) -> None:
        """The same work took one_s on one device, and wide_s on `width`, a moment apart."""
        if not (one_s > 0 and wide_s > 0 and width > 1):
            return
        self._betas.append(beta_of([one_s] * (width - 1) + [wide_s]))
        if not self.asks:
            return
        self._rounds.append(wide_s < (1 - self._gain_min) * one_s)
        verdict = verdict_of(self._rounds)
        if verdict is not None:
            self._settled()

    def begun(self) -> None:
        """A trial of this architecture begins. While wider ones do not pay, they are measured again some day."""
        if self._left > 0 and self.width_max == 1:
            self._left -= 1

    def _settled(self) -> None:
        self._left = AGAIN_WIDE * 2**self._looks
        self._looks += 1
        self._betas = deque(list(self._betas)[-len(self._rounds) :], maxlen=COMPARED)
        self._rounds = []


def _with(ratio: float, level: int) -> Sequence[float]:
    """avg(T^1) ... avg(T^p) of which only the last two count."""
    return [1.0] * (level - 1) + [ratio]
