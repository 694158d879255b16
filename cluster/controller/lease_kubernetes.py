"""The controller's lease as a Kubernetes Lease (`coordination.k8s.io/v1`): for controllers in a cluster, which share no data folder.

The API server's resource version makes a change one atomic step: of two who replace what they both read, the second is refused. A
Lease's own times are written by its holder's clock, which another machine must not judge by; so whoever waits counts, on his own
monotonic clock, how long the lease has not changed, as Kubernetes' leader election does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from cluster.controller.lease import LEASE, Held
from cluster.engines.kubernetes_api import Body, KubernetesApi, KubernetesRefusal, gone, there
from configs.errors import EnvironmentLacking


class KubernetesLeases:
    """`LeaseStore`. utc_s, monotonic_s: this machine's clocks; the first is only written down, for people."""

    def __init__(
        self,
        api: KubernetesApi,
        utc_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        *,
        name: str = f"driftbox-{LEASE}",
    ) -> None:
        self._api, self._utc_s, self._monotonic_s, self._name = api, utc_s, monotonic_s, name
        self._namespace, self._domain = api.settings.namespace, api.settings.domain
        #: Resource version last seen, and when first.
        self._seen: tuple[str, float] = ("", 0.0)

    def take(self, holder: str, *, lasts_s: float, note: str = "", above: int = 0) -> Held:
        for _ in range(3):
            found = self._read()
            held = self._told(found, lasts_s) if found else None
            if found and held and held.holder not in ("", holder) and not self._over(found):
                return held
            same = held is not None and held.holder == holder and held.term > above and not self._over(found)
            term = held.term if held and same else max(above, held.term if held else 0) + 1
            if self._write(found, self._spec(holder, term, lasts_s, note, found)):
                self._read()  # from here on it is known to be fresh
                return Held(mine=True, holder=holder, term=term, until_utc_s=self._utc_s() + lasts_s, note=note)
        raise EnvironmentLacking("the lease changes under our hands", subject=self._name, remedy="it is tried again")

    def give(self, holder: str, term: int) -> None:
        found = self._read()
        if found and str(_spec_of(found).get("holderIdentity") or "").partition(" ")[0] == holder and _term_of(found) == term:
            spec = {**_spec_of(found), "holderIdentity": ""}
            self._write(found, spec)

    def _over(self, found: Body | None) -> bool:
        """Nobody holds it, or its holder has not renewed it for as long as it lasts, by our own counting."""
        if found is None or not _spec_of(found).get("holderIdentity"):
            return True
        return self._monotonic_s() - self._seen[1] > float(_spec_of(found).get("leaseDurationSeconds") or 0)

    def _read(self) -> Body | None:
        try:
            found = self._api.call(self._api.leases.read_namespaced_lease, self._name, self._namespace)
        except KubernetesRefusal as error:
            if gone(error):
                return None
            raise
        version = str(found["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, self._monotonic_s())
        return found

    def _write(self, found: Body | None, spec: Body) -> bool:
        """False: somebody was quicker."""
        body: Body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}
        try:
            if found is None:
                self._api.call(self._api.leases.create_namespaced_lease, self._namespace, body)
            else:
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                body["metadata"] = {"name": self._name, "annotations": found["metadata"].get("annotations") or {}, **version}
                self._api.call(self._api.leases.replace_namespaced_lease, self._name, self._namespace, body)
        except KubernetesRefusal as error:
            if there(error):
                return False
            raise
        return True

    def _spec(self, holder: str, term: int, lasts_s: float, note: str, found: Body | None) -> Body:
        """The address goes beside the id: a Lease has no field of its own for it. `leaseTransitions` is the term."""
        now = datetime.fromtimestamp(self._utc_s(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = _spec_of(found) if found else {}
        since = before.get("acquireTime") if before.get("holderIdentity", "").partition(" ")[0] == holder else None
        identity = f"{holder} {note}".strip()
        return {
            "holderIdentity": identity,
            "leaseDurationSeconds": max(1, round(lasts_s)),
            "leaseTransitions": term,
            "acquireTime": since or now,
            "renewTime": now,
        }

    def _told(self, found: Body, lasts_s: float) -> Held:
        holder, _, note = str(_spec_of(found).get("holderIdentity") or "").partition(" ")
        left_s = lasts_s - (self._monotonic_s() - self._seen[1])
        return Held(mine=False, holder=holder, term=_term_of(found), until_utc_s=self._utc_s() + max(0.0, left_s), note=note)


def _spec_of(found: Body) -> dict[str, Any]:
    return dict(found.get("spec") or {})


def _term_of(found: Body) -> int:
    return int(_spec_of(found).get("leaseTransitions") or 0)
