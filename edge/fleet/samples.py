"""Samples that leave the box for pooled training: only with the operator's consent, masked, sealed end to end, bounded, in parts.

One request is served once, in steps that a kill cannot hurt, each in the box's audit log:

    request.json    what was asked; plan.json   which samples make which part, and what was left out, decided once
    part-000000.sealed, in a parcel as soon as it is whole; sent.json   parts that the fleet has
    ended.json      the last word; after it nothing of the request is done again

The consent is asked for again before every part, and every picture is looked at for its masks (`edge.fleet.mask_check`). Only training
samples go; what a box judges by stays with it. The part files are removed when they are sent: the box keeps its samples, not copies.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.errors import DriftboxError, EnvironmentLacking, StorageError, UsageError
from configs.files import atomic_write, storage_errors
from edge.fleet.envelope import Member, certificate_of, open_sealed, seal
from edge.fleet.mask_check import is_masked
from edge.fleet.parcels import ParcelPost
from scheduler.fleet import codec
from scheduler.fleet.pooling import Collected, CollectRequest, PartSent, end_parcel, part_parcel, request_parcel
from scheduler.fleet.types import CameraKey, checked
from streams.block_file import remove_block_file
from streams.masks import Mask
from streams.sample_record import SampleRecord, carried, digest, write_partitioned
from streams.samples import SampleRef, SampleStore

log = logging.getLogger("driftbox")

#: (action, outcome, detail): the box's audit log (`edge.store.accounts.AccountStore.add_audit`).
Audit = Callable[[str, str, str], None]
#: Requests whose traces are kept, so that a replayed one is known.
KEPT_REQUESTS = 100
#: Why a sample stays.
NO_CONSENT = "camera without consent"


@dataclass(frozen=True, kw_only=True)
class Giving:
    """A camera of this box as far as its samples are concerned. consent: the operator's, no by default; masks: those in force; arch: of
    the model that it runs."""

    consent: bool = False
    masks: tuple[Mask, ...] = ()
    arch: str = ""


@dataclass(frozen=True, kw_only=True)
class Box:
    """What giving samples needs of a box. cameras: those whose samples it may give, as they are configured *now*; most_bytes: that it
    ever gives for one request; utc: its clock; whole: not for a training service, but because the camera itself moves
    (`edge.fleet.labels_leave`): what it is judged by and what a person took out go with it, whatever a person said goes first and from
    any window."""

    member: Member
    post: ParcelPost
    store: SampleStore
    cameras: Callable[[], Mapping[str, Giving]]
    audit: Audit
    utc: Callable[[], float]
    most_bytes: int = 1024 * 2**20
    whole: bool = False


class Withdrawn(UsageError):
    """The operator took a consent back while samples were leaving."""


class SampleGiver:
    """`edge.fleet.handlers.SampleDesk` over a folder of its own. retry_s: between tries while the fleet is away."""

    def __init__(self, box: Box, folder: Path, *, retry_s: float = 60.0) -> None:
        self._box, self._folder, self._retry_s = box, folder, retry_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted, self._stop = "", threading.Event()

    def collect(self, request: str) -> None:
        """See `SampleDesk`. Returns at once; a thread does the work and tries again while the fleet is away."""
        if request:
            try:
                checked(request, "a request for samples")
            except ValueError as error:
                raise UsageError(str(error), subject="collect", remedy="ask with an id of a-z, 0-9, '_', '-'") from None
        with self._lock:
            self._wanted = request
            if request and not self.ended(request) and not (self._thread and self._thread.is_alive()):
                self._stop.clear()
                self._thread = threading.Thread(target=self._work, name="fleet-samples", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def ended(self, request: str) -> bool:
        return (self._place(request) / "ended.json").is_file()

    def serve(self, request: str) -> Collected:
        """Serves a request to its end, from where it was left. Raises EnvironmentLacking (the fleet is away: later), UsageError (not a
        request of this fleet for this box), StorageError."""
        place = self._place(request)
        if self.ended(request):
            return codec.decode(Collected, (place / "ended.json").read_bytes())
        asked = self._asked(request)
        try:
            plan = self._plan(asked)
            if not plan["parts"]:
                word = self._word(asked, "refused", plan, "no sample of a camera that consents and fits the request")
            else:
                word = self._word(
                    asked, "given", plan, "", tuple(self._give(asked, plan, n) for n in range(len(plan["parts"])))
                )
        except Withdrawn as error:
            word = self._word(asked, "withdrawn", _plan_of(place), error.message)
        self._send(asked, end_parcel(asked.trainer, asked.id, asked.box), codec.encode(word))
        self._end(asked, word)
        return word

    def begin(self, asked: CollectRequest) -> None:
        """A request of the box's own; that it was begun already changes nothing. Durable. Raises StorageError."""
        if not (self._place(asked.id) / "request.json").is_file():
            self._take_up(asked)

    # --- steps ----------------------------------------------------------------------------------------------------------

    def _asked(self, request: str) -> CollectRequest:
        path = self._place(request) / "request.json"
        if path.is_file():
            return codec.decode(CollectRequest, path.read_bytes())
        me = self._box.member
        parcel = request_parcel(me.box, request)
        opened = open_sealed(self._box.post.get(parcel), parcel=parcel, member=me, now_utc_s=self._box.utc())
        asked = codec.decode(CollectRequest, opened.content)
        if (asked.id, asked.box, asked.trainer) != (request, me.box, opened.sender):
            raise UsageError(
                f"request {request} is for {asked.box} from {asked.trainer}, but came to {me.box} from {opened.sender}", subject=request,
                remedy="nothing is given; who trains in this fleet?",
            )  # fmt: skip
        self._take_up(asked)
        return asked

    def _take_up(self, asked: CollectRequest) -> None:
        path = self._place(asked.id) / "request.json"
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, codec.encode(asked))
        who = f"the camera moves to {asked.trainer}" if self._box.whole else f"by {asked.trainer}"
        self._note(asked, "asked", f"{who}, at most {asked.most_bytes} bytes")

    def _plan(self, asked: CollectRequest) -> dict[str, Any]:
        """Which samples make which part; decided once, because samples come and go meanwhile."""
        path = self._place(asked.id) / "plan.json"
        if path.is_file():
            return _plan_of(path.parent)
        parts, left_out, names = planned(asked, self._box)
        plan = {"parts": parts, "left_out": dict(left_out), "cameras": names}
        atomic_write(path, json.dumps(plan).encode())
        said = ", ".join(names) or "no camera"
        self._note(
            asked,
            "planned",
            f"{sum(map(len, parts))} pictures of {said} in {len(parts)} parts; left out: {dict(left_out) or 'none'}",
        )
        return plan

    def _give(self, asked: CollectRequest, plan: dict[str, Any], part: int) -> PartSent:
        sent = self._sent(asked.id)
        if str(part) in sent:
            return PartSent(**sent[str(part)])
        if self._stop.is_set():
            raise EnvironmentLacking("the box stops", subject=asked.id, remedy="the rest is given after its start", code="away")
        refs = [SampleRef(stream=c, window=w, seq=s) for c, w, s in plan["parts"][part]]
        self._check_consent(asked, {ref.stream for ref in refs})
        place, path = self._place(asked.id), self._place(asked.id) / f"part-{part:06d}.sealed"
        about = path.with_suffix(".json")
        if not (path.is_file() and about.is_file()):
            self._pack(asked, refs, part, path, about)
        told = json.loads(about.read_text())
        detail = f"part {part}: {told['samples']} pictures, {told['size_bytes']} bytes, sha256 {told['sha256'][:12]}"
        self._note(asked, "given", detail)  # before it leaves: the log may say too much, never too little
        self._box.post.put(part_parcel(asked.trainer, asked.id, asked.box, part), path.read_bytes())
        atomic_write(place / "sent.json", json.dumps({**sent, str(part): told}).encode())
        for done in (path, about):
            done.unlink(missing_ok=True)
        return PartSent(**told)

    def _pack(self, asked: CollectRequest, refs: Sequence[SampleRef], part: int, path: Path, about: Path) -> None:
        """The part, sealed, under its final name: what is sent after a kill is byte for byte what was sent before it."""
        place, name = path.parent, f"part-{part:06d}"
        records = [record for ref in refs if (record := self._record(asked, ref)) is not None]
        remove_block_file(place, name)
        write_partitioned(place, name, records, partitions=asked.partitions, covers=[(part, 0)])
        data = carried(place, name)
        remove_block_file(place, name)
        told = PartSent(sha256=digest(data), samples=len(records), size_bytes=len(data))
        sealed = self._sealed(asked, part_parcel(asked.trainer, asked.id, asked.box, part), data)
        atomic_write(about, json.dumps(asdict(told)).encode(), secret=True)
        atomic_write(path, sealed, secret=True)

    def _record(self, asked: CollectRequest, ref: SampleRef) -> SampleRecord | None:
        """None: it is gone meanwhile, or a mask was drawn that is not in it."""
        giving = self._box.cameras().get(ref.stream, Giving())
        record = read_sample(self._box.store, asked.box, ref)
        return record if record is not None and why_not(record, giving, whole=self._box.whole) == "" else None

    def _check_consent(self, asked: CollectRequest, cameras: set[str]) -> None:
        now = self._box.cameras()
        gone = sorted(camera for camera in cameras if not now.get(camera, Giving()).consent)
        if gone:
            raise Withdrawn(
                f"the consent for {', '.join(gone)} was taken back", subject=asked.id, remedy="nothing more is given"
            )

    def _send(self, asked: CollectRequest, parcel: str, content: bytes) -> None:
        """Sealed once: the same parcel must not come with other bytes after a kill."""
        path = self._place(asked.id) / "end.sealed"
        if not path.is_file():
            atomic_write(path, self._sealed(asked, parcel, content), secret=True)
        self._box.post.put(parcel, path.read_bytes())

    def _sealed(self, asked: CollectRequest, parcel: str, content: bytes) -> bytes:
        to = certificate_of(self._box.post.certificate_of(asked.trainer))
        return seal(content, parcel=parcel, sender=self._box.member, addressee=to, to=asked.trainer, now_utc_s=self._box.utc())

    def _word(
        self, asked: CollectRequest, stage: Any, plan: dict[str, Any], problem: str, parts: tuple[PartSent, ...] = ()
    ) -> Collected:
        return Collected(
            request=asked.id, box=asked.box, stage=stage, parts=parts, problem=problem, left_out=dict(plan.get("left_out", {}))
        )

    def _end(self, asked: CollectRequest, word: Collected) -> None:
        place = self._place(asked.id)
        atomic_write(place / "ended.json", codec.encode(word))
        self._note(asked, word.stage, word.problem or f"{len(word.parts)} parts, {sum(p.samples for p in word.parts)} pictures")
        for path in place.iterdir():
            if path.name not in ("ended.json", "request.json"):
                path.unlink(missing_ok=True)
        for old in sorted(self._folder.iterdir(), key=lambda p: p.stat().st_mtime_ns)[:-KEPT_REQUESTS]:
            shutil.rmtree(old, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (request := self._wanted) and not self._stop.is_set() and not self.ended(request):
            try:
                self.serve(request)
            except EnvironmentLacking as error:
                log.warning("samples for %s wait: %s", request, error)
                self._stop.wait(self._retry_s)
            except DriftboxError as error:
                log.warning("samples for %s are not given: %s", request, error)
                self._tell("fleet.samples.refused", "error", f"{request}: {error.message}")
                return

    def _note(self, asked: CollectRequest, what: str, detail: str) -> None:
        self._tell(f"fleet.samples.{what}", "ok", f"{asked.id}: {detail}")

    def _tell(self, action: str, outcome: str, detail: str) -> None:
        """What cannot be told to the audit log does not happen: samples never leave unrecorded."""
        self._box.audit(action, outcome, detail)

    def _place(self, request: str) -> Path:
        return self._folder / checked(request, "a request for samples")

    def _sent(self, request: str) -> dict[str, Any]:
        path = self._place(request) / "sent.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}


def planned(asked: CollectRequest, box: Box) -> tuple[list[list[tuple[str, int, int]]], Counter[str], list[str]]:
    """Parts of (camera, window, seq), how many pictures were left out and why, the cameras: newest windows first, camera by camera in
    turns until the bytes are used up."""
    cameras, left_out = box.cameras(), Counter[str]()
    wanted = {key.camera for key in asked.cameras if key.home == asked.box}
    chosen = []
    for camera, giving in sorted(cameras.items()):
        if asked.cameras and camera not in wanted:
            continue
        if not giving.consent:
            left_out[NO_CONSENT] += len(box.store.list(camera, labelled=True))
        elif asked.arch and giving.arch != asked.arch:
            left_out["camera of another model"] += len(box.store.list(camera, labelled=True))
        else:
            chosen.append(camera)
    queues = {camera: _queue(box, camera, asked) for camera in chosen}
    budget, size = min(asked.most_bytes, box.most_bytes), 0
    parts: list[list[tuple[str, int, int]]] = []
    part: list[tuple[str, int, int]] = []
    while any(queues.values()):
        for camera in [c for c in chosen if queues[c]]:
            ref = queues[camera].pop(0)
            record = read_sample(box.store, asked.box, ref)
            why = "damaged" if record is None else why_not(record, cameras[camera], whole=box.whole)
            cost = len(record.jpeg) + 1024 if record is not None else 0
            if not why and cost > budget:
                why = "no room in the request"
            if why:
                left_out[why] += 1
                continue
            budget -= cost
            if part and size + cost > asked.part_bytes:
                parts.append(part)
                part, size = [], 0
            part.append((ref.stream, ref.window, ref.seq))
            size += cost
    return ([*parts, part] if part else parts), left_out, sorted({camera for p in [*parts, part] for camera, *_ in p})


def _queue(box: Box, camera: str, asked: CollectRequest) -> list[SampleRef]:
    """The camera's samples that are thought of, those that matter most first."""
    newest = box.store.windows(camera)[-asked.newest_windows :]
    refs = box.store.list(camera) if box.whole else box.store.usable(camera, newest, "train")
    found = [(ref, labels) for ref in reversed(refs) if (labels := box.store.labels_or_none(ref)) is not None]
    wanted = [(ref, labels.by == "person") for ref, labels in found if labels.stored_utc >= asked.since_utc]
    if not box.whole:
        return [ref for ref, _ in wanted]
    by_person = [ref for ref, is_persons in wanted if is_persons]
    return by_person + [ref for ref, is_persons in wanted if not is_persons and ref.window in newest]


def read_sample(store: SampleStore, box: str, ref: SampleRef) -> SampleRecord | None:
    """None: gone or damaged."""
    try:
        labels, jpeg = store.load_labels(ref), store.picture_bytes(ref)
    except (KeyError, StorageError):
        return None
    return SampleRecord(camera=CameraKey(home=box, camera=ref.stream), window=ref.window, seq=ref.seq, labels=labels, jpeg=jpeg)


def why_not(record: SampleRecord, giving: Giving, *, whole: bool = False) -> str:
    """Why a sample does not leave the box, '' it may. whole: see `Box`."""
    if not giving.consent:
        return NO_CONSENT
    if not whole and (record.labels.split != "train" or not record.labels.usable):
        return "not for training"
    try:
        image = record.image()
    except ValueError:
        return "damaged"
    return "" if is_masked(image, giving.masks) else "not masked"


def _plan_of(place: Path) -> dict[str, Any]:
    path = place / "plan.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}
