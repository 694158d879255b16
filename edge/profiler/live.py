"""Stored profiles in a running box: what a plan may choose from for a camera, and when a profile has grown old."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from configs.errors import StorageError
from edge.profiler.asked import Asked, by_itself, default_menus, query_menu_of
from edge.profiler.profile import CameraProfile, Menu, menu_of, read_profile, refusal
from edge.queries.base import QuerySpec
from scheduler.types import KnobProfile
from scheduler.videostorm.joint import QueryMenu
from scheduler.videostorm.reprofile import ProfileAge, ReprofileRules, fresh, reviewed


class ProfileStore(Protocol):
    def profile(self, camera: str) -> tuple[int, str] | None: ...


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What a camera is watched with: a profile of something else is none of it. every_frame: its source can be read frame by
    frame."""

    task: str
    model: str
    fps: float
    machine: str
    device: str = "cpu"
    every_frame: bool = False


@dataclass(kw_only=True)
class LiveMenu:
    """A camera's menu as it is used. version: of the profile; mu: real over profiled cost of a frame, as plans were told last; knob:
    name of the knobs in force."""

    version: int
    menu: Menu
    mu: float = 1.0
    knob: str | None = None
    age: ProfileAge = field(default_factory=ProfileAge)

    @property
    def knobs(self) -> tuple[KnobProfile, ...]:
        return self.menu.at(self.mu)

    @property
    def reduces(self) -> bool:
        """Whether it has a resolution knob."""
        return any(k.height_px for k in self.menu.knobs)

    def expected_cost_s(self) -> float:
        """Of a frame with the knobs in force, as plans were told."""
        return self.mu * self.menu.expected_cost_s(self.knob)

    def corrected(self, cost_s: float) -> tuple[KnobProfile, ...]:
        """A frame with the knobs in force costs `cost_s`: all of the menu is scaled alike (card, section 9)."""
        mu = cost_s / self.menu.expected_cost_s(self.knob)
        if math.isfinite(mu) and mu > 0:
            self.mu = mu
        return self.knobs

    def due(self, rules: ReprofileRules, *, at_s: float, cost_s: float | None, drifted: bool) -> str:
        """Why to profile anew, '' while it will do."""
        mu = cost_s / self.menu.expected_cost_s(self.knob) if cost_s else None
        self.age, why = reviewed(self.age, rules, at_s=at_s, mu=mu, drifted=drifted)
        return why


class Profiles:
    """The stored profiles of a box's cameras. tell: (camera, text), told once per profile that cannot be used."""

    def __init__(self, store: ProfileStore, watching: Callable[[str], Watching], tell: Callable[[str, str], None]) -> None:
        self._store, self._watching, self._tell = store, watching, tell
        self._seen: dict[str, int] = {}

    def menu(self, camera: str, *, at_s: float = 0.0) -> LiveMenu | None:
        """The newest profile's, None: there is none that may be used. Raises StorageError of the disk; a damaged profile is told."""
        found = self._store.profile(camera)
        if found is None:
            return None
        version, text = found
        first, self._seen[camera] = self._seen.get(camera) != version, version
        try:
            profile = read_profile(text, subject=camera)
        except StorageError as error:
            self._refused(camera, f"{error}; the default one serves", first)
            return None
        menu, why = menu_of(profile), refusal_of(profile, self._watching(camera))
        if why or menu is None:
            reason = why or "nothing in it can be turned on a live camera"
            text = f"its profile (version {version}) is not used, the default one is: {reason}; run driftbox profile {camera}"
            self._refused(camera, text, first)
            return None
        return LiveMenu(version=version, menu=menu, age=fresh(at_s))

    def newer(self, camera: str, than: LiveMenu | None, *, at_s: float = 0.0) -> LiveMenu | None:
        """A profile that was written since; None: nothing new that could be used."""
        found = self._store.profile(camera)
        known = than.version if than is not None else self._seen.get(camera, 0)
        if found is None or found[0] <= known:
            return None
        return self.menu(camera, at_s=at_s)

    def asked(
        self, camera: str, specs: Mapping[str, QuerySpec], *, known: Asked | None = None, at_s: float = 0.0
    ) -> Asked | None:
        """What the profiles of a camera's queries offer (`driftbox profile CAMERA --query`); None: nothing was written since `known`.
        Raises StorageError of the disk; a damaged profile, or one that does not fit, is told."""
        found = {name: self._store.profile(f"{camera}/{name}") for name in specs}
        versions = {name: one[0] for name, one in found.items() if one is not None}
        if known is not None and versions == known.versions:
            return None
        offered = {name: self._query_menu(camera, spec, found[name]) for name, spec in specs.items()}
        menus = {name: menu for name, menu in offered.items() if menu is not None}
        if not specs:
            return Asked()
        watching = self._watching(camera)
        return Asked(
            versions=versions, menus=menus,
            defaults=default_menus((spec for name, spec in specs.items() if name not in menus), watching.fps),
            by_itself=frozenset(name for name, spec in specs.items() if by_itself(spec, every_frame=watching.every_frame)),
            ages={name: _age(name, versions, menus, known, at_s) for name in specs},
        )  # fmt: skip

    def _query_menu(self, camera: str, spec: QuerySpec, found: tuple[int, str] | None) -> QueryMenu | None:
        if found is None:
            return None
        (version, text), key = found, f"{camera}/{spec.name}"
        first, self._seen[key] = self._seen.get(key) != version, version
        try:
            profile = read_profile(text, subject=key)
        except StorageError as error:
            self._refused(camera, f"{error}; the query {spec.name} keeps its settings", first)
            return None
        menu, why = query_menu_of(profile, spec), refusal_of(profile, self._watching(camera))
        if why or menu is None:
            reason = why or "none of its settings is one that the query may have now"
            text = (
                f"the profile of its query {spec.name} (version {version}) is not used: {reason}; run driftbox profile {camera}"
            )
            self._refused(camera, text, first)
            return None
        return menu

    def _refused(self, camera: str, text: str, first: bool) -> None:
        if first:
            self._tell(camera, text)


def _age(
    query: str, versions: Mapping[str, int], menus: Mapping[str, QueryMenu], known: Asked | None, at_s: float
) -> ProfileAge:
    """Also one that is of no use has just been made when it came after `known`: another would be no better at once."""
    if known is None:
        return fresh(at_s) if query in menus else ProfileAge()
    same = query in known.ages and versions.get(query) == known.versions.get(query)
    return known.ages[query] if same else fresh(at_s)


def refusal_of(profile: CameraProfile, watching: Watching) -> str:
    return refusal(
        profile, task=watching.task, model=watching.model, fps=watching.fps, machine=watching.machine, device=watching.device
    )
