"""The controller's lease in a Ray cluster's own key-value store (GCS): for controllers that share a Ray cluster and no data folder.

The store can add a key that is not there in one atomic step, and no more; so a term is a key of its own, and whoever adds it has it. Its
holder alone counts up a second key when it renews. Whoever waits counts, on its own monotonic clock, how long that has not changed. A
head that starts again without a store of its own has forgotten every term; then the database's fence and the boxes' `above` keep a new
term from being lower than an old one (`FleetDatabase`, `LeaseKeeper.heard`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster.controller.lease import LEASE, Held
from cluster.engines.ray_cluster import RaySettings, must_answer, prepare_environment
from configs.errors import EnvironmentLacking

_SPACE = b"driftbox-lease"
#: Terms kept behind the newest one.
_KEPT = 3


@dataclass(frozen=True, kw_only=True)
class _Newest:
    term: int
    holder: str
    note: str
    renewed: bytes


def kv_client(address: str, token: str) -> Any:
    """Ray's `GcsClient`. It needs no part in the cluster: the controller's machine need not be one of its nodes. EnvironmentLacking:
    Ray is not installed, nobody answers, the token is refused."""
    prepare_environment(RaySettings(address=address, token=token))
    must_answer(address)
    from cluster.engines.ray_worker import gcs_client

    return gcs_client(address)


class RayLeases:
    """`LeaseStore`. client: Ray's `GcsClient`; utc_s, monotonic_s: this machine's clocks, the first only for what people read."""

    def __init__(
        self,
        client: Any,
        utc_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        *,
        name: str = LEASE,
        timeout_s: float = 5.0,
    ) -> None:
        self._client, self._utc_s, self._monotonic_s, self._name, self._timeout_s = client, utc_s, monotonic_s, name, timeout_s
        #: (term, what its holder last wrote), and since when.
        self._seen: tuple[tuple[int, bytes], float] = ((0, b""), 0.0)

    def take(self, holder: str, *, lasts_s: float, note: str = "", above: int = 0) -> Held:
        newest = self._newest()
        over = newest is None or not newest.holder or self._monotonic_s() - self._seen[1] > lasts_s
        if newest is not None and newest.holder != holder and not over:
            left_s = lasts_s - (self._monotonic_s() - self._seen[1])
            return Held(
                mine=False,
                holder=newest.holder,
                term=newest.term,
                until_utc_s=self._utc_s() + max(0.0, left_s),
                note=newest.note,
            )
        if newest is not None and newest.holder == holder and not over and newest.term > above:
            term = newest.term
        else:
            term = max(above, newest.term if newest else 0) + 1
            if not self._add(self._key("term", term), {"holder": holder, "note": note}):
                return self._beaten(lasts_s)
        self._put(self._key("renewed", term), str(self._utc_s()).encode())
        after = self._newest()
        if after is None or (after.term, after.holder) != (term, holder):
            return self._beaten(lasts_s)  # a higher one was taken between the two steps
        self._drop_old(term)
        return Held(mine=True, holder=holder, term=term, until_utc_s=self._utc_s() + lasts_s, note=note)

    def give(self, holder: str, term: int) -> None:
        newest = self._newest()
        if newest is not None and (newest.holder, newest.term) == (holder, term):
            self._put(self._key("renewed", term), b"given")

    def _beaten(self, lasts_s: float) -> Held:
        newest = self._newest()
        if newest is None:
            raise EnvironmentLacking("the lease changes under our hands", subject=self._name, remedy="it is tried again")
        return Held(mine=False, holder=newest.holder, term=newest.term, until_utc_s=self._utc_s() + lasts_s, note=newest.note)

    def _newest(self) -> _Newest | None:
        terms = [int(key.rpartition(b"/")[2]) for key in self._call("internal_kv_keys", self._prefix("term"), _SPACE)]
        if not terms:
            return None
        term = max(terms)
        keys = [self._key("term", term), self._key("renewed", term)]
        found = self._call("internal_kv_multi_get", keys, _SPACE)
        body, renewed = json.loads(found.get(keys[0], b"{}")), found.get(keys[1], b"")
        if (term, renewed) != self._seen[0]:
            self._seen = ((term, renewed), self._monotonic_s())
        given = renewed == b"given"
        return _Newest(term=term, holder="" if given else body.get("holder", ""), note=body.get("note", ""), renewed=renewed)

    def _drop_old(self, term: int) -> None:
        for old in range(max(1, term - 2 * _KEPT), term - _KEPT + 1):
            for part in ("term", "renewed"):
                self._call("internal_kv_del", self._key(part, old), False, _SPACE)

    def _add(self, key: bytes, body: dict[str, str]) -> bool:
        return bool(self._call("internal_kv_put", key, json.dumps(body).encode(), False, _SPACE))

    def _put(self, key: bytes, value: bytes) -> None:
        self._call("internal_kv_put", key, value, True, _SPACE)

    def _prefix(self, part: str) -> bytes:
        return f"{self._name}/{part}/".encode()

    def _key(self, part: str, term: int) -> bytes:
        return self._prefix(part) + str(term).encode()

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._client, method)(*args, timeout=self._timeout_s)
        except Exception as error:  # Ray raises whatever its parts do
            raise EnvironmentLacking(
                f"the lease cannot be asked for: {type(error).__name__}",
                subject=self._name,
                remedy="is the Ray cluster's head running?",
            ) from None
