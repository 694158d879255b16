"""Models that the fleet offers: fetched, checked, judged by the camera's own gate, answered. Nothing here decides whether one serves.

An offer becomes what `driftbox models import` makes of a bundle: a candidate from outside (`edge.models_exchange`), which the camera's
next window measures beside the serving one on its own held-out labels, takes up only if better, and watches as it watches every swap.
What became of it is read from the one place that knows, the camera's model rows: an answer survives restarts, and the same bundle is
never measured twice on a camera, whatever rollout brings it. A bundle whose key the box does not trust is no answer yet: the offer
waits, says so, and is taken up once the key is trusted.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from configs.errors import DriftboxError, EnvironmentLacking
from configs.files import atomic_write, sha256_of, storage_errors
from edge.fleet.parcels import ParcelPost
from edge.models_admin import WENT_BACK, opened, rollback
from edge.models_exchange import import_model
from edge.store.store import ModelState, Store, StoredModel
from models.keys import KeyRing
from scheduler.fleet.types import CameraKey, ModelOffer, OfferWord

log = logging.getLogger("driftbox")

#: What the scheduler says of a candidate that it found no better (`scheduler.engine.Engine._judge_offered`).
_FIGURES = re.compile(r"(\d\.\d+) against (\d\.\d+)")
#: Why a candidate is gone when the fleet has taken it back.
WITHDRAWN = "withdrawn by the fleet"
#: Answers of offers that stand no more, kept in case they come back.
KEPT_ANSWERS = 1000


class OfferBook:
    """`edge.fleet.handlers.OfferDesk`. data_dir: of the box; folder: for bundles on their way and answers that no model row can hold;
    local_id: the id of a camera on this box, None: it is not watched here; retry_s: between tries while the fleet is away."""

    def __init__(
        self,
        data_dir: Path,
        folder: Path,
        post: ParcelPost,
        *,
        local_id: Callable[[CameraKey], str | None],
        retry_s: float = 60.0,
    ) -> None:
        self._data_dir, self._folder, self._post = data_dir, folder, post
        self._local_id, self._retry_s = local_id, retry_s
        self._lock = threading.Lock()
        self._offers: tuple[ModelOffer, ...] = ()
        self._stop, self._more = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        #: Offers that wait for trust -> (why, keys that were trusted then).
        self._untrusted: dict[str, tuple[str, list[str]]] = {}

    def take(self, offers: Sequence[ModelOffer]) -> None:
        """See `OfferDesk`. Returns at once; a thread fetches and tries again while the fleet is away."""
        with self._lock:
            self._offers = tuple(offers)
            self._more.set()
            if offers and not (self._thread and self._thread.is_alive()) and not self._stop.is_set():
                self._thread = threading.Thread(target=self._work, name="fleet-offers", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._more.set()
        if self._thread is not None:
            self._thread.join()

    def words(self) -> tuple[OfferWord, ...]:
        """See `OfferDesk`."""
        if not self._offers:
            return ()
        answers = self._answers()
        with opened(self._data_dir) as (_, store):
            return tuple(self._word(offer, camera, store, answers) for offer in self._offers for camera in offer.cameras)

    def settle(self) -> bool:
        """Takes every offer that stands as far as it can go now; whether all of that was done (else: later again)."""
        whole = True
        for offer in self._offers:
            for camera in offer.cameras:
                if self._waits_for_trust(offer, camera):
                    whole = False
                    continue
                try:
                    self._withdraw(offer, camera) if offer.withdraw else self._bring(offer, camera)
                except EnvironmentLacking as error:
                    if error.code in ("weights", "bundle"):
                        self._fail(offer, camera, error)
                    else:
                        log.warning("offer %s for %s waits: %s", offer.rollout, camera, error)
                        whole = False
                except DriftboxError as error:
                    if error.code == "untrusted":
                        whole = False
                        log.warning("offer %s for %s waits: %s (%s)", offer.rollout, camera, error, error.remedy)
                        self._untrusted[_key(offer, camera)] = f"{error.message}: {error.remedy}", self._trusted()
                        self._drop_file(offer)
                    else:
                        self._fail(offer, camera, error)
        return whole

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            self._more.clear()
            try:
                done = self.settle()
            except DriftboxError as error:
                log.warning("offers of models wait: %s", error)
                done = False
            if not self._offers:
                return
            self._more.wait(None if done else self._retry_s)

    def _waits_for_trust(self, offer: ModelOffer, camera: CameraKey) -> bool:
        """Whether its key was not trusted, and nothing has changed since."""
        found = self._untrusted.get(_key(offer, camera))
        if found is None:
            return False
        if found[1] == self._trusted() and not offer.withdraw:
            return True
        del self._untrusted[_key(offer, camera)]
        return False

    def _trusted(self) -> list[str]:
        return KeyRing(self._data_dir).trusted()

    def _bring(self, offer: ModelOffer, camera: CameraKey) -> None:
        """Fetches the bundle and makes it a candidate, unless this camera has had it."""
        local = self._local_id(camera)
        if local is None or self._answered(offer, camera) or self._row(offer, local) is not None:
            return
        bundle = self._fetched(offer)
        digest = sha256_of(bundle)
        with opened(self._data_dir) as (_, store):
            known = next((m for m in store.models(local) if m.origin.get("bundle") == digest), None)
        if known is not None:
            self._answer(offer, camera, {"same_as": known.version.id})
            return
        origin = {"rollout": offer.rollout, "bundle": digest}
        taken = import_model(self._data_dir, bundle, camera=local, more_origin=origin)
        log.info("model %s is offered to %s by %s; its gate will judge it", taken["version"], local, offer.rollout)

    def _withdraw(self, offer: ModelOffer, camera: CameraKey) -> None:
        """A candidate goes; what serves gives its place back to what it replaced."""
        local = self._local_id(camera)
        row = (
            self._row(offer, local, version=str(self._answered(offer, camera).get("same_as", "")))
            if local is not None
            else None
        )
        if local is None or row is None:
            return
        if row.state is ModelState.CANDIDATE:
            with opened(self._data_dir) as (folder, store), folder.files_lock():
                if store.reject_unless_used(row.version.id, reason=WITHDRAWN, though_pinned=True):
                    folder.remove_version(local, row.version.id)
        elif row.state is ModelState.SERVING:
            rollback(self._data_dir, local)

    def _word(self, offer: ModelOffer, camera: CameraKey, store: Store, answers: Mapping[str, Any]) -> OfferWord:
        local, answer = self._local_id(camera), answers.get(_key(offer, camera), {})
        if local is None:
            return OfferWord(rollout=offer.rollout, camera=camera, stage="failed", problem="it is not watched here")
        if "problem" in answer:
            return OfferWord(rollout=offer.rollout, camera=camera, stage="failed", problem=str(answer["problem"]))
        untrusted = self._untrusted.get(_key(offer, camera))
        if untrusted is not None:
            return OfferWord(rollout=offer.rollout, camera=camera, stage="judging", problem=untrusted[0])
        row = _row_of(store, local, offer.rollout, str(answer.get("same_as", "")))
        word = _told(offer, camera, row)
        if row is not None and word.stage == "serving" and (why := _given_up(store, row)):
            word = replace(word, stage="refused", problem=why)
        return replace(word, version=row.version.id) if row is not None else word

    def _row(self, offer: ModelOffer, camera: str, *, version: str = "") -> StoredModel | None:
        """The camera's model that this offer brought; version: one that another offer had brought."""
        with opened(self._data_dir) as (_, store):
            return _row_of(store, camera, offer.rollout, version)

    def _fetched(self, offer: ModelOffer) -> Path:
        """The bundle's file, fetched once for all cameras. What is in it is believed by nobody before `models.bundle` has read it."""
        path = self._file(offer)
        if not path.is_file():
            data = self._post.get(offer.parcel)
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, data)
        return path

    def _file(self, offer: ModelOffer) -> Path:
        return self._folder / f"{sha256(offer.parcel.encode()).hexdigest()[:32]}.driftbox"

    def _fail(self, offer: ModelOffer, camera: CameraKey, error: DriftboxError) -> None:
        log.warning("offer %s for %s cannot be judged: %s", offer.rollout, camera, error)
        if not offer.withdraw:
            self._answer(offer, camera, {"problem": error.message})
            self._drop_file(offer)

    def _drop_file(self, offer: ModelOffer) -> None:
        with suppress(OSError):
            self._file(offer).unlink(missing_ok=True)

    def _answers(self) -> dict[str, Any]:
        path = self._folder / "answers.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        except (OSError, ValueError):
            return {}  # offers are looked at again: rows say what became of them

    def _answered(self, offer: ModelOffer, camera: CameraKey) -> Mapping[str, Any]:
        return dict(self._answers().get(_key(offer, camera), {}))

    def _answer(self, offer: ModelOffer, camera: CameraKey, what: Mapping[str, Any]) -> None:
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        answers = {**self._answers(), _key(offer, camera): dict(what)}
        atomic_write(self._folder / "answers.json", json.dumps(dict(list(answers.items())[-KEPT_ANSWERS:])).encode())


def _key(offer: ModelOffer, camera: CameraKey) -> str:
    return f"{offer.rollout} {camera}"


def _row_of(store: Store, camera: str, rollout: str, version: str) -> StoredModel | None:
    models = reversed(store.models(camera))
    return next((m for m in models if m.version.id == version or (not version and m.origin.get("rollout") == rollout)), None)


def _given_up(store: Store, row: StoredModel) -> str:
    """Why what was let in serves no more, where the box found that the one before was better after all; '' otherwise: it serves, or a
    newer model does."""
    serving = store.serving(row.version.stream).get(row.version.stream)
    found = store.model(serving.id) if serving is not None and row.state is ModelState.RETIRED else None
    return f"let in, then given up: {found.reason}" if found is not None and found.reason.startswith(WENT_BACK) else ""


def _told(offer: ModelOffer, camera: CameraKey, row: StoredModel | None) -> OfferWord:
    """What a model row says of an offer."""
    if row is None or row.state is ModelState.CANDIDATE:
        return OfferWord(rollout=offer.rollout, camera=camera, stage="judging")
    if offer.withdraw and row.state is not ModelState.SERVING:
        return OfferWord(rollout=offer.rollout, camera=camera, stage="withdrawn", after=row.version.quality)
    if row.state is ModelState.SERVING:
        return OfferWord(rollout=offer.rollout, camera=camera, stage="serving", after=row.version.quality)
    figures = _FIGURES.search(row.reason)
    if row.state is ModelState.REJECTED and figures is not None:
        after, before = float(figures[1]), float(figures[2])
        return OfferWord(rollout=offer.rollout, camera=camera, stage="refused", before=before, after=after, problem=row.reason)
    stage: Any = (
        "refused" if row.state is ModelState.REJECTED else "serving"
    )  # retired: it has served, and a newer one does now
    return OfferWord(rollout=offer.rollout, camera=camera, stage=stage, after=row.version.quality, problem=row.reason)
