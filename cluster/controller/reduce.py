"""What an event makes of what the controller knows. Pure: `reduce(known, event) -> known`.

Nothing is decided here: who gets what and which camera moves is `cluster.controller.round`'s. An event about a box that is no member
changes nothing: joining comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.controller import belief
from cluster.controller import events as happened
from cluster.placement.handoff import HandoffRules, begin_handoff
from cluster.placement.sight import lease_of
from cluster.rollouts import wishes
from cluster.types import BoxView, FleetState
from configs.errors import UsageError

#: A doubt about something that happened once (an old message, nonsense) is told for so long.
TOLD_S = 600.0
#: Such doubts that are kept of a box.
MOST_ONCE = 5
_NEVER_S = 1e15


@dataclass(frozen=True, kw_only=True)
class Known:
    """The fleet's state, and what belief needs beside it. voices: who was heard under each box's id (`belief.listen`); once: (sentence,
    when) of what happened once; lasting: doubts about the newest report; wished: (term, version) of the newest wish told to each box."""

    state: FleetState = FleetState()
    voices: Mapping[str, tuple[belief.Voice, ...]] = field(default_factory=dict)
    once: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    lasting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wished: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    handoffs: HandoffRules = HandoffRules()


def reduce(known: Known, event: happened.Event) -> Known:
    """Raises UsageError only for what an owner wishes and cannot be (drain, pin, rollout, customers)."""
    return _HOW[type(event)](known, event)


# --- what boxes say ---------------------------------------------------------------------------------------------------


def _report(known: Known, event: happened.ReportHeard) -> Known:
    report, now_utc_s = event.report, event.at_utc_s
    view = known.state.boxes.get(report.box)
    if view is None or view.site != report.site:
        return known if view is None else _doubted(known, report.box, f"a message names site {report.site[:80]}", now_utc_s)
    heard = belief.listen(known.voices.get(report.box, ()), report.boot, report.sequence, now_utc_s=now_utc_s)
    known = replace(known, voices={**known.voices, report.box: heard.voices})
    if not heard.use:
        # The box is there all the same: what is doubted are its numbers.
        known = _with_box(known, replace(view, seen_utc_s=max(view.seen_utc_s, now_utc_s) if heard.doubt else view.seen_utc_s))
        return _doubted(known, report.box, heard.doubt, now_utc_s) if heard.doubt else known
    offset_s = belief.measured_offset_s(report, view, now_utc_s=now_utc_s)
    found = belief.believable(
        report, view, known.state.leases, known.state.handoffs, wished=known.wished.get(report.box, (0, 0))
    )
    view = replace(view, report=found.report, seen_utc_s=now_utc_s, offset_s=offset_s)
    view = view if view.online else replace(view, online=True, online_utc_s=now_utc_s)
    known = replace(_with_box(known, view), lasting={**known.lasting, report.box: found.doubts})
    return _with_doubts(known, report.box, now_utc_s)


def _unreadable(known: Known, event: happened.Unreadable) -> Known:
    if event.box not in known.state.boxes:
        return known
    return _doubted(known, event.box, f"a message cannot be read: {event.why}", event.at_utc_s)


def _availability(known: Known, event: happened.Availability) -> Known:
    view = known.state.boxes.get(event.box)
    if view is None or view.online == event.online:
        return known
    return _with_box(known, replace(view, online=event.online, online_utc_s=event.at_utc_s if event.online else 0.0))


def _listening(known: Known, event: happened.Listening) -> Known:
    """As long as nothing is heard, silence says nothing: the moment from which it counts stands far in the future."""
    since = event.at_utc_s if event.on else _NEVER_S
    return _with(known, listens_utc_s=since)


# --- members ----------------------------------------------------------------------------------------------------------


def _joined(known: Known, event: happened.BoxJoined) -> Known:
    before = known.state.boxes.get(event.box)
    view = before or BoxView(id=event.box, site=event.site, joined_utc_s=event.at_utc_s)
    known = _with_box(known, replace(view, site=event.site, joined_utc_s=event.at_utc_s, enrolled_pct=event.capacity_pct))
    # It may be another machine under the old name, with a count of its own.
    return replace(known, voices=_without(known.voices, event.box), once=_without(known.once, event.box))


def _forgotten(known: Known, event: happened.BoxForgotten) -> Known:
    state = known.state
    gone = replace(
        state, boxes=_without(state.boxes, event.box), offers=_without(state.offers, event.box),
        collects=_without(state.collects, event.box),
        leases={key: lease for key, lease in state.leases.items() if event.box not in (key.home, lease.box)},
        handoffs={k: h for k, h in state.handoffs.items() if event.box not in (k.home, h.source, h.target)},
    )  # fmt: skip
    standing = {
        key: replace(lease, standby="", standby_parcel="") if lease.standby == event.box else lease
        for key, lease in gone.leases.items()
    }
    return replace(
        known, state=replace(gone, leases=standing), voices=_without(known.voices, event.box),
        once=_without(known.once, event.box), lasting=_without(known.lasting, event.box),
        wished=_without(known.wished, event.box),
    )  # fmt: skip


# --- what the owner wishes --------------------------------------------------------------------------------------------


def _customer_put(known: Known, event: happened.CustomerPut) -> Known:
    customer = event.customer
    return _with(known, customers={**known.state.customers, customer.id: customer})


def _customer_removed(known: Known, event: happened.CustomerRemoved) -> Known:
    if event.customer not in known.state.customers:
        raise _unknown("customer", event.customer)
    using = sorted(str(c.camera) for view in known.state.boxes.values() for c in view.cameras if c.customer == event.customer)
    if using:
        raise UsageError(
            f"cameras are watched for customer {event.customer}: {', '.join(using[:5])}", subject=event.customer, code="in_use",
            remedy="give them another customer on their boxes first",
        )  # fmt: skip
    return _with(known, customers=_without(known.state.customers, event.customer))


def _drain(known: Known, event: happened.DrainWished) -> Known:
    return _with_box(known, replace(_box(known, event.box), draining=event.on))


def _pin(known: Known, event: happened.PinWished) -> Known:
    """Where the camera is not yet, it sets out for at once."""
    state, camera = known.state, event.camera
    if all(report.camera != camera for view in state.boxes.values() for report in view.cameras):
        raise _unknown("camera", str(camera))
    if event.box:
        _box(known, event.box)
        state = begin_handoff(
            state, camera, event.box, cause="move", reason=f"wished by {event.by}", rules=known.handoffs,
            now_utc_s=event.at_utc_s,
        )  # fmt: skip
        handoff = state.handoffs.get(camera)
        if lease_of(state, camera).box != event.box and (handoff is None or handoff.target != event.box):
            raise UsageError(
                f"{camera} is on its way just now", subject=str(camera), code="in_use", remedy="try again in a minute"
            )
    lease = replace(lease_of(state, camera), pinned=bool(event.box))
    return replace(known, state=replace(state, leases={**state.leases, camera: lease}))


def _offers(known: Known, event: happened.OffersSet) -> Known:
    _box(known, event.box)
    rest = _without(known.state.offers, event.box)
    return _with(known, offers=rest | ({event.box: event.offers} if event.offers else {}))


def _collect(known: Known, event: happened.CollectSet) -> Known:
    _box(known, event.box)
    rest = _without(known.state.collects, event.box)
    return _with(known, collects=rest | ({event.box: event.request} if event.request else {}))


def _parcels(known: Known, event: happened.ParcelsSeen) -> Known:
    return known if event.parcels == known.state.parcels else _with(known, parcels=event.parcels)


def _rollout(known: Known, event: happened.RolloutWished) -> Known:
    return replace(known, state=wishes.apply(event.wish, known.state, event.at_utc_s, by=event.by))


def _site(known: Known, event: happened.SitePut) -> Known:
    rest = _without(known.state.sites, event.site)
    return _with(known, sites=rest if event.place is None else rest | {event.site: event.place})


def _group(known: Known, event: happened.GroupWeighed) -> Known:
    rest = _without(known.state.groups, event.group.id)
    return _with(known, groups=rest if event.group.weight == 1 else rest | {event.group.id: event.group})


# --- inside -----------------------------------------------------------------------------------------------------------

_HOW: dict[type[Any], Callable[[Known, Any], Known]] = {
    happened.ReportHeard: _report,
    happened.Unreadable: _unreadable,
    happened.Availability: _availability,
    happened.Listening: _listening,
    happened.BoxJoined: _joined,
    happened.BoxForgotten: _forgotten,
    happened.CustomerPut: _customer_put,
    happened.CustomerRemoved: _customer_removed,
    happened.DrainWished: _drain,
    happened.PinWished: _pin,
    happened.OffersSet: _offers,
    happened.CollectSet: _collect,
    happened.ParcelsSeen: _parcels,
    happened.RolloutWished: _rollout,
    happened.SitePut: _site,
    happened.GroupWeighed: _group,
}


def _doubted(known: Known, box: str, sentence: str, now_utc_s: float) -> Known:
    """The same sentence again is told from now on; only the newest stay. Numbers in it would make every one new: it is cut at them."""
    others = tuple(told for told in known.once.get(box, ()) if told[0] != sentence)
    known = replace(known, once={**known.once, box: (*others, (sentence, now_utc_s))[-MOST_ONCE:]})
    return _with_doubts(known, box, now_utc_s)


def _with_doubts(known: Known, box: str, now_utc_s: float) -> Known:
    fresh = tuple((text, at) for text, at in known.once.get(box, ()) if now_utc_s - at < TOLD_S)
    if fresh != known.once.get(box, ()):
        known = replace(known, once={**known.once, box: fresh})
    doubts = tuple(dict.fromkeys((*known.lasting.get(box, ()), *(text for text, _ in fresh))))
    view = known.state.boxes[box]
    return known if view.doubts == doubts else _with_box(known, replace(view, doubts=doubts))


def _box(known: Known, box: str) -> BoxView:
    if box not in known.state.boxes:
        raise _unknown("box", box)
    return known.state.boxes[box]


def _unknown(what: str, id: str) -> UsageError:
    return UsageError(
        f"the fleet has no {what} {id[:128]}", subject=id[:128], code="not_found", remedy="driftbox fleet status lists all"
    )


def _with(known: Known, **changes: Any) -> Known:
    return replace(known, state=replace(known.state, **changes))


def _with_box(known: Known, view: BoxView) -> Known:
    return _with(known, boxes={**known.state.boxes, view.id: view})


def _without(mapping: Mapping[Any, Any], key: Any) -> dict[Any, Any]:
    return {k: v for k, v in mapping.items() if k != key}
