"""The trackers of the package trackers as plain values, and back. Where the package has another release here, or another association is
wanted, nothing of a tracker's inside is taken on: its tracks are found again by overlap (`edge.queries.places.Track.update`).

What is not in the values follows from the settings: transition and noise matrices are made by the tracker itself.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from edge.queries.carried import MOST_TRACKS, Filter, Observed, Tracker, Tracklet, ago

#: A box that any filter can begin from, before its own state is put in.
_ANY_BOX = (0.0, 0.0, 1.0, 1.0)


def release() -> str:
    return version("trackers")


def exported(tracker: Any, association: str, at_s: float) -> Tracker:
    last_s = tracker._last_timestamp
    return Tracker(
        of=association, release=release(), next=tracker._next_track_id, frames=getattr(tracker, "frame_count", 0),
        last_ago_s=None if last_s is None else ago(at_s, last_s), tracks=[_tracklet(one) for one in tracker.tracks[:MOST_TRACKS]],
    )  # fmt: skip


def fits(carried: Tracker | None, association: str) -> bool:
    """Whether the inside of such a tracker can be taken on here."""
    return carried is not None and carried.of == association and carried.release == release()


def put_in(carried: Tracker, tracker: Any, base_s: float) -> None:
    """`tracker` goes on as the other one would have. base_s: when the frame was that the state was taken after. ValueError: it is none
    of such a tracker."""
    ids = [one.id for one in carried.tracks if one.id >= 0]
    if len(set(ids)) != len(ids) or any(id >= carried.next for id in ids):
        raise ValueError("a tracker's numbers are not one each")
    tracker.tracks = [_restored(one, tracker) for one in carried.tracks]
    tracker._next_track_id = carried.next
    tracker._last_timestamp = None if carried.last_ago_s is None else base_s - carried.last_ago_s
    if hasattr(tracker, "frame_count"):
        tracker.frame_count = carried.frames


# --- one track --------------------------------------------------------------------------------------------------------


def _tracklet(one: Any) -> Tracklet:
    return Tracklet(
        id=one.tracker_id, age=one.age, missed=one.time_since_update, missed_s=one.time_since_update_seconds,
        hits=one.number_of_successful_consecutive_updates, updates=getattr(one, "number_of_successful_updates", None),
        filter=_filter(one.state_estimator.get_state()), observed=_observed(one) if hasattr(one, "observations") else None,
    )  # fmt: skip


def _filter(state: Any) -> Filter:
    return Filter(state=state["state"].ravel().tolist(), covariance=state["state_covariance"].ravel().tolist())


def _observed(one: Any) -> Observed:
    return Observed(
        last=one.last_observation.tolist(),
        before_last=None if one.previous_to_last_observation is None else one.previous_to_last_observation.tolist(),
        boxes=[(age, box.tolist()) for age, box in one.observations.items()],
        velocity=None if one.velocity is None else one.velocity.tolist(),
        frozen=None if one._frozen_state is None else _filter(one._frozen_state), seen=one._observed,
    )  # fmt: skip


def _restored(carried: Tracklet, tracker: Any) -> Any:
    one = _new(tracker)
    one.tracker_id, one.age = carried.id, carried.age
    one.time_since_update, one.time_since_update_seconds = carried.missed, carried.missed_s
    one.number_of_successful_consecutive_updates = carried.hits
    if (carried.updates is None) == hasattr(one, "number_of_successful_updates"):
        raise ValueError("a track of another association")
    if carried.updates is not None:
        one.number_of_successful_updates = carried.updates
    one.state_estimator.set_state(_of_filter(carried.filter, one))
    if (carried.observed is None) == hasattr(one, "observations"):
        raise ValueError("a track of another association")
    if carried.observed is not None:
        _observe(one, carried.observed)
    return one


def _new(tracker: Any) -> Any:
    from trackers.core.bytetrack.tracklet import ByteTrackTracklet
    from trackers.core.ocsort.tracklet import OCSORTTracklet
    from trackers.core.sort.tracklet import SORTTracklet

    box, estimator = np.array(_ANY_BOX), tracker.state_estimator_class
    if tracker.tracker_id == "ocsort":
        return OCSORTTracklet(box, delta_t=tracker.delta_t, state_estimator_class=estimator)
    return {"bytetrack": ByteTrackTracklet, "sort": SORTTracklet}[tracker.tracker_id](box, state_estimator_class=estimator)


def _of_filter(carried: Filter, one: Any) -> dict[str, np.ndarray]:
    """For `set_state`. A covariance that is none would make the tracker raise on every frame from now on."""
    own = one.state_estimator.get_state()
    dim = own["state"].size
    if len(carried.state) != dim or len(carried.covariance) != dim * dim:
        raise ValueError(f"a filter of {len(carried.state)} numbers, not {dim}")
    covariance = np.array(carried.covariance).reshape(dim, dim)
    if not np.allclose(covariance, covariance.T, rtol=1e-6, atol=1e-9) or np.linalg.eigvalsh(covariance).min() <= 0:
        raise ValueError("a filter's covariance that is none")
    return {**own, "state": np.array(carried.state).reshape(dim, 1), "state_covariance": covariance}


def _observe(one: Any, carried: Observed) -> None:
    one.last_observation = np.array(carried.last)
    one.previous_to_last_observation = None if carried.before_last is None else np.array(carried.before_last)
    one.observations = {age: np.array(box) for age, box in carried.boxes}
    one.velocity = None if carried.velocity is None else np.array(carried.velocity)
    one._frozen_state = None if carried.frozen is None else _of_filter(carried.frozen, one)
    one._observed = carried.seen
