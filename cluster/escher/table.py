"""The one table of policies, and a library's state as JSON: what a controller stores and takes up again."""

from __future__ import annotations

from typing import Any

from cluster.escher.library import State
from cluster.escher.policies.balance import Balancer
from cluster.escher.policies.base import Policy
from cluster.escher.policies.dag import Dag
from cluster.escher.policies.fair_queue import FairQueue
from cluster.escher.policies.fair_share import FairShare
from cluster.escher.policies.gang import Gang
from cluster.escher.policies.gang_desk import GangDesk
from cluster.escher.policies.packing import Consolidate, Packer
from cluster.escher.policies.skyline import Reservation
from cluster.escher.policies.soft import Soft
from cluster.escher.policies.turnstile import Turnstile
from cluster.escher.registry import Registry
from configs.errors import UsageError
from scheduler.fleet.codec import as_dict, decode

#: Policies that go on over time. Those that are a list of calls made once: `cluster.escher.policies.placing`.
POLICIES: dict[str, type[Any]] = {
    "balance": Balancer,
    "consolidate": Consolidate,
    "dag": Dag,
    "fair-queue": FairQueue,
    "fair-share": FairShare,
    "gang": Gang,
    "gang-desk": GangDesk,
    "pack": Packer,
    "reservation": Reservation,
    "soft": Soft,
    "turnstile": Turnstile,
}


def state_as_dict(state: State) -> dict[str, Any]:
    """JSON values."""
    return {
        "registry": as_dict(state.registry),
        "policies": [{"policy": _name(policy), "state": as_dict(policy)} for policy in state.policies.values()],
    }


def state_from_dict(stored: dict[str, Any]) -> State:
    """The inverse. UsageError for what is none."""
    policies: dict[str, Policy] = {}
    for entry in stored.get("policies", ()):
        known = POLICIES.get(entry.get("policy"))
        if known is None:
            raise UsageError(
                f"unknown policy '{str(entry.get('policy'))[:80]}'", subject="escher", remedy=f"known: {', '.join(POLICIES)}"
            )
        policy: Policy = decode(known, entry["state"])
        policies[policy.id] = policy
    return State(registry=decode(Registry, stored.get("registry", {})), policies=policies)


def _name(policy: Policy) -> str:
    return next(name for name, known in POLICIES.items() if type(policy) is known)
