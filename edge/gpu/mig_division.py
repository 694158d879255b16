"""Divides a GPU into the partition that this box works in, when its operator said that it may (`gpus.mig_reconfigure`).

One partition per box, of the profile that is configured. What the box made it keeps in a note (`mig.json` in the data folder); nothing
else is touched, nothing is changed while anybody computes on the GPU, and MIG mode is not switched (docs/decisions/0083). Each step is
noted before and after, so that a box that was killed in between finds at its next start what it had made. A step that fails leaves the
GPU as it was.

What is asked of NVML, and how, is in `edge.gpu.mig_card`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from configs.errors import DriftboxError, EnvironmentLacking
from configs.files import atomic_write
from configs.machine import boot_id
from edge.gpu.mig_card import Card, Profile

log = logging.getLogger("driftbox")

NOTE = "mig.json"


@dataclass(frozen=True, kw_only=True)
class Own:
    """A partition that this box made. gpu: UUID of its GPU; number: of the GPU instance; uuid: of the MIG device, empty: not yet."""

    gpu: str
    number: int
    profile: str
    uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A partition that is being made. before: numbers of the GPU instances of that profile that were there."""

    gpu: str
    profile: str
    before: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Note:
    """What the box remembers. boot: of the machine; instances do not survive it."""

    boot: str
    own: tuple[Own, ...] = ()
    begun: Begun | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to be done. use: a partition of the box that is as wanted, None: one is to be made; remove: those that are not."""

    use: Own | None
    remove: tuple[Own, ...] = ()

    @property
    def is_none(self) -> bool:
        return self.use is not None and bool(self.use.uuid) and not self.remove

    def words(self, profile: Profile) -> str:
        """What a start would do, for people."""
        removes = f"; it removes its {', '.join(own.profile for own in self.remove)}" if self.remove else ""
        if self.use is None:
            return f"the box makes a partition {profile.name} when it starts{removes}"
        return f"the box works in its own partition {profile.name} {self.use.uuid or '(completed at its start)'}{removes}"


class Division:
    """card: entered, with MIG mode on. Methods raise EnvironmentLacking for what the machine does not allow, StorageError when the note
    cannot be written. One box per data folder at a time (`edge.store.folder`)."""

    def __init__(
        self, card: Card, data_dir: Path, *, boot: Callable[[], str] = boot_id,
        tell: Callable[[str], None] = lambda text: log.warning("%s", text),
    ) -> None:  # fmt: skip
        self._card, self._path, self._tell, self._boot = card, data_dir / NOTE, tell, boot()
        self._note = self._read()

    @property
    def noted(self) -> tuple[Own, ...]:
        """What the box made, as far as it knows."""
        return self._note.own

    def profile(self, name: str) -> Profile:
        profiles = self._card.profiles()
        if name not in profiles:
            raise EnvironmentLacking(
                f"{self._card.name} has no MIG profile {name}", subject="gpus.mig_profile", code="no_profile",
                remedy=f"set gpus.mig_profile to one that it has: {', '.join(profiles) or 'none'}",
            )  # fmt: skip
        return profiles[name]

    def change(self, profile: Profile) -> Change:
        """What a start would do; raises when it could not. Changes nothing."""
        return self._change(self._reconciled(), profile)

    def carry_out(self, profile: Profile) -> str:
        """Makes the change; the UUID of the partition to work in."""
        note = self._reconciled()
        change = self._change(note, profile)
        if note != self._note:
            self._write(note)
        if change.is_none:
            assert change.use is not None
            return change.use.uuid
        if change.use is None and not self._card.has_room(profile):
            return self._in_place_of(change.remove, profile)
        used = self._make(profile) if change.use is None else self._completed(change.use)
        for own in change.remove:
            self._remove(own)
        return used.uuid

    # --- changing -----------------------------------------------------------------------------------------------------

    def _in_place_of(self, old: tuple[Own, ...], profile: Profile) -> str:
        """Removes first, because both do not fit. What was there comes back when the new one cannot be made."""
        removed: list[Own] = []
        try:
            for own in old:
                self._remove(own)
                removed.append(own)
            return self._make(profile).uuid
        except DriftboxError:
            for own in removed:
                self._put_back(own)
            raise

    def _put_back(self, own: Own) -> None:
        try:
            self._make(self.profile(own.profile))
        except DriftboxError as error:
            self._tell(f"{self._card.name}: the box's partition {own.profile} was removed and could not be made again: {error}")

    def _make(self, profile: Profile) -> Own:
        before = tuple(sorted(self._card.instances(profile)))
        self._write(replace(self._note, begun=Begun(gpu=self._card.uuid, profile=profile.name, before=before)))
        try:
            number = self._card.create(profile)
        except DriftboxError:
            self._write(replace(self._note, begun=None))
            raise
        made = Own(gpu=self._card.uuid, number=number, profile=profile.name)
        self._write(replace(self._note, own=(*self._note.own, made), begun=None))
        try:
            return self._completed(made)
        except DriftboxError:
            self._take_back(made)
            raise

    def _take_back(self, made: Own) -> None:
        """One that could not be completed; when it stays, it stays noted, and the next start tries again."""
        try:
            self._remove(made)
        except DriftboxError as error:
            self._tell(f"{self._card.name}: a partition {made.profile} that was begun could not be removed: {error}")

    def _completed(self, own: Own) -> Own:
        done = replace(own, uuid=self._card.complete(own.number))
        self._write(replace(self._note, own=tuple(done if _same(o, own) else o for o in self._note.own)))
        return done

    def _remove(self, own: Own) -> None:
        self._card.destroy(own.number)
        self._write(replace(self._note, own=tuple(o for o in self._note.own if not _same(o, own))))

    # --- what is ours -------------------------------------------------------------------------------------------------

    def _change(self, note: Note, profile: Profile) -> Change:
        here = [own for own in note.own if own.gpu == self._card.uuid]
        use = next((own for own in here if own.profile == profile.name), None)
        change = Change(use=use, remove=tuple(own for own in here if own is not use))
        if not change.is_none:
            self._card.nobody_computes()
        if use is None and not change.remove:  # what room its own ones would make is the driver's to say
            self._card.must_have_room(profile)
        return change

    def _reconciled(self) -> Note:
        """The note as far as the GPU bears it out, with what a box that was killed had made and not noted."""
        note, profiles = self._note, self._card.profiles()
        kept = tuple(own for own in (self._seen(own, profiles) for own in note.own) if own is not None)
        begun = note.begun
        if begun is None or begun.gpu != self._card.uuid:
            return replace(note, own=kept)
        there = self._card.instances(profiles[begun.profile]) if begun.profile in profiles else set()
        new = sorted(there - set(begun.before) - {own.number for own in kept})
        if len(new) == 1:
            kept = (*kept, Own(gpu=begun.gpu, number=new[0], profile=begun.profile, uuid=self._card.uuid_of(new[0])))
        elif new:
            self._tell(
                f"{self._card.name}: {len(new)} partitions {begun.profile} have come since this box was stopped while it made one; none "
                "is taken for its own (nvidia-smi mig -lgi lists them, -dci and then -dgi remove what nobody needs)"
            )
        return replace(note, own=kept, begun=None)

    def _seen(self, own: Own, profiles: dict[str, Profile]) -> Own | None:
        """One of ours as it is now; None: it is gone, or another one has its place. Those on other GPUs are not looked at."""
        if own.gpu != self._card.uuid:
            return own
        profile = profiles.get(own.profile)
        if profile is None or own.number not in self._card.instances(profile):
            return None
        uuid = self._card.uuid_of(own.number)
        return None if own.uuid and uuid not in ("", own.uuid) else replace(own, uuid=uuid)

    def _read(self) -> Note:
        """An empty one when there is none, when it is damaged, or when the machine was restarted since."""
        empty = Note(boot=self._boot)
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
            begun = told["begun"]
            found = Note(
                boot=str(told["boot"]), own=tuple(Own(**entry) for entry in told["own"]),
                begun=None if begun is None else Begun(**{**begun, "before": tuple(begun["before"])}),
            )  # fmt: skip
        except FileNotFoundError:
            return empty
        except (OSError, ValueError, TypeError, KeyError):
            self._tell(f"{self._path} is damaged: what this box made on its GPU before is not known, and is left alone")
            return empty
        return found if found.boot == self._boot else empty

    def _write(self, note: Note) -> None:
        atomic_write(self._path, json.dumps(asdict(note), indent=1).encode())
        self._note = note


def _same(one: Own, other: Own) -> bool:
    return (one.gpu, one.number) == (other.gpu, other.number)
