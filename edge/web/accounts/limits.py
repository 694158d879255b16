"""How wrong passwords slow down whoever tries, and nobody else. Pure: `now_s` is an argument.

Tries are counted for three things, each with its own allowance and growing waits: an account from one address (somebody guesses a
password), an address (somebody guesses names), and an account from everywhere (many machines guess together). The last wait is short and
does not hold for addresses from which the account was opened before, so guessing from elsewhere keeps nobody out.

A try counts as wrong from its beginning until it has proved right: a thousand at once are a thousand wrong ones. While one must wait,
nothing is looked at and nothing is counted.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

#: Each table forgets the oldest beyond this.
MOST_KEYS = 10_000
Key = tuple[str, ...]
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """free: wrong tries without a wait; first_s: wait after the next, doubled by every further one up to most_s; forget_s: without
    tries for so long, all is forgotten."""

    free: int
    first_s: float
    most_s: float
    forget_s: float

    def wait_s(self, wrong: int) -> float:
        """After so many wrong tries, from the last one on."""
        over = wrong - self.free
        if over < 0:
            return 0.0
        return min(self.most_s, self.first_s * 2.0 ** min(over, 40))


PAIR = Allowance(free=5, first_s=2.0, most_s=900.0, forget_s=3600.0)
ADDRESS = Allowance(free=30, first_s=2.0, most_s=900.0, forget_s=3600.0)
ACCOUNT = Allowance(free=50, first_s=1.0, most_s=30.0, forget_s=3600.0)


@dataclass(frozen=True, kw_only=True)
class Tally:
    wrong: int
    last_s: float


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 a /64, which any one customer has whole."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None)
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)


class SignInLimits:
    """Not thread-safe; `Accounts` holds a lock around it."""

    def __init__(self, *, pair: Allowance = PAIR, address: Allowance = ADDRESS, account: Allowance = ACCOUNT) -> None:
        self._allowances = {"pair": pair, "address": address, "account": account}
        self._tallies: OrderedDict[Key, Tally] = OrderedDict()
        self._known: OrderedDict[Key, None] = OrderedDict()

    def begin(self, account: str, address: str, *, now_s: float) -> float:
        """Seconds to wait, nothing was counted; 0.0: the try may be looked at, and counts as wrong until `succeeded`."""
        network = network_of(address)
        keys = self._keys(account, network)
        wait_s = max((self._wait_s(key, now_s) for key in self._felt(account, network, keys)), default=0.0)
        if wait_s > 0:
            return wait_s
        for key in keys:
            self._count(key, now_s)
        return 0.0

    def succeeded(self, account: str, address: str) -> None:
        """The newest try was right: it is taken back. What was tried from this address at this account before is forgotten; what was
        tried at others is not, or an own account would be a way around the limit."""
        self.take_back(account, address)
        network = network_of(address)
        self._tallies.pop(("pair", account, network), None)
        _remember(self._known, (account, network), None)

    def take_back(self, account: str, address: str) -> None:
        """The newest try was not looked at after all."""
        for key in self._keys(account, network_of(address)):
            tally = self._tallies.get(key)
            if tally is not None:
                self._tallies[key] = Tally(wrong=max(0, tally.wrong - 1), last_s=tally.last_s)

    def waiting(self, *, now_s: float) -> int:
        """Of how many things (account, address, both) the next try must wait."""
        return sum(self._wait_s(key, now_s) > 0 for key in self._tallies)

    def _keys(self, account: str, network: str) -> tuple[Key, ...]:
        return ("pair", account, network), ("address", network), ("account", account)

    def _felt(self, account: str, network: str, keys: Iterable[Key]) -> list[Key]:
        known = (account, network) in self._known
        return [key for key in keys if not (known and key[0] == "account")]

    def _wait_s(self, key: Key, now_s: float) -> float:
        tally = self._tallies.get(key)
        if tally is None:
            return 0.0
        return max(0.0, tally.last_s + self._allowances[key[0]].wait_s(tally.wrong) - now_s)

    def _count(self, key: Key, now_s: float) -> None:
        tally = self._tallies.get(key)
        fresh = tally is None or now_s - tally.last_s >= self._allowances[key[0]].forget_s
        _remember(self._tallies, key, Tally(wrong=1 if fresh or tally is None else tally.wrong + 1, last_s=now_s))


def _remember(table: OrderedDict[Key, V], key: Key, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MOST_KEYS:
        table.popitem(last=False)
