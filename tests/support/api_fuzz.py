"""Requests made up from the box's own OpenAPI document (schemathesis), against the whole interface in this process.

Accounts, events and settings are the real ones over a folder; cameras, commands and what the learning pages ask are fakes, so that
nothing made up here reaches a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import content_type_conformance, response_schema_conformance
from schemathesis.core.failures import Failure, FailureGroup

from configs.errors import UsageError
from configs.load import parse_config
from edge.cameras.desk import CameraInfo, CameraList
from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
from edge.cameras.probe import ProbeResult
from edge.control import COMMANDS
from edge.labels_fake import FakeLabels
from edge.settings import BoxSettings
from edge.settings_book import SettingsBook
from edge.web.fake_learning import FakeGpu, FakeLearning, FakeModels, FakeQueries, FakeWhy
from edge.web.services import Services
from edge.web.who import Role
from tests.support.accounts import HERE, House, bearer


class FakeDesk:
    """Cameras in memory. What cannot be a camera is refused as the real desk does."""

    def __init__(self) -> None:
        self.kept: dict[str, CameraInfo] = {}

    def list(self) -> CameraList:
        return CameraList(cameras=tuple(self.kept.values()))

    def get(self, camera: str) -> CameraInfo:
        if camera not in self.kept:
            raise UsageError(f"no camera has the id {camera}", subject=camera, code="not_found")
        return self.kept[camera]

    def add(self, document: Mapping[str, Any], *, by: str) -> CameraInfo:
        raise UsageError("this one adds no cameras", code="exists")

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> CameraInfo:
        return self.get(camera)

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> None:
        self.get(camera)

    def reset(self, camera: str, *, by: str) -> CameraInfo | None:
        return self.get(camera)

    def propose_id(self, name: str) -> str:
        return "camera"

    def discover(self, *, seconds: float, address: str = "") -> tuple[OnvifCamera, ...]:
        return ()

    def probe_onvif(self, address: str, *, user: str, password: str) -> OnvifProbe:
        raise UsageError("nothing answers there")

    def probe(self, url: str, *, transport: str = "tcp", local: bool = False) -> ProbeResult:
        raise UsageError("nothing answers there")

    def picture(self, token: str) -> bytes | None:
        return None


class FakeControl:
    """Checks commands and does nothing."""

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        if command not in COMMANDS:
            raise UsageError(f"there is no command {command}", subject=command, code="not_found")
        return dict(COMMANDS[command][0].model_validate(arguments).model_dump())


def whole(house: House, folder: Path) -> Services:
    """Every part of the interface."""
    from edge.media.folder import MediaFolder
    from edge.media.library import Library
    from edge.store.objects import ObjectStore

    config = parse_config(f"box: {{data_dir: {folder}}}")
    return Services(
        labels=FakeLabels(4), learning=FakeLearning(), why=FakeWhy(), gpu=FakeGpu(), models=FakeModels(), queries=FakeQueries(),
        settings=BoxSettings(config, folder, book=SettingsBook(config, house.store, utc_s=house.clock.utc_s)),
        cameras=FakeDesk(), control=FakeControl(),
        events=Library(ObjectStore(house.store), MediaFolder(folder / "media")),
    )  # fmt: skip


#: Operations without parameters have few different requests; the others get what is missing in a further turn.
MOST_TURNS = 5


@dataclass(kw_only=True)
class Found:
    """failures: what was asked and what came back, for answers of 500 and more, and for what is not as documented."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    server_errors: list[str] = field(default_factory=list)
    undocumented: list[str] = field(default_factory=list)


@contextmanager
def fuzzed_box(folder: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """(application, headers of an admin)."""
    house = House(folder)
    try:
        yield house.app(whole(house, folder)), bearer(house.token(Role.ADMIN, name="fuzz"))
    finally:
        house.close()


def fuzz(app: Any, headers: Mapping[str, str], *, cases: int, start: int | None = None) -> Found:
    """So many requests or a few more, spread evenly over all operations. start: of the chance, None: always the same requests, and
    fewer where an operation has not so many."""
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app
    found = Found()
    operations = [o.ok() for o in schema.get_all_operations()]
    for turn in range(1 if start is None else MOST_TURNS):
        if found.cases >= cases:
            break
        per_operation = -(-(cases - found.cases) // len(operations))
        for operation in operations:
            _fuzz_one(operation, headers, per_operation, None if start is None else start + turn, found)
    return found


def _fuzz_one(operation: Any, headers: Mapping[str, str], cases: int, start: int | None, found: Found) -> None:
    @settings(
        max_examples=cases, deadline=None, database=None, derandomize=start is None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=_cases(operation))
    def one(case: Any) -> None:
        found.cases += 1
        try:
            answer = case.call(headers=dict(headers))
        except Exception as error:  # a mistake comes through, with its traceback, instead of the answer 500
            found.statuses[500] += 1
            found.server_errors.append(f"{case.method} {case.formatted_path} {case.query!r} {case.body!r:.300}: {error!r}")
            return
        found.statuses[answer.status_code] += 1
        told = (
            f"{case.method} {case.formatted_path} {case.query!r} {case.body!r:.300} -> {answer.status_code} {answer.text:.300}"
        )
        if answer.status_code >= 500 and answer.status_code not in (503, 507):
            found.server_errors.append(told)
        elif str(answer.status_code) not in operation.definition.raw.get("responses", {}):
            found.undocumented.append(told)
        else:
            try:
                case.validate_response(answer, checks=[response_schema_conformance, content_type_conformance])
            except (Failure, FailureGroup) as error:
                found.undocumented.append(f"{told}: {str(error):.400}")

    (seed(start)(one) if start is not None else one)()


def _cases(operation: Any) -> Any:
    modes = schemathesis.GenerationMode
    return operation.as_strategy(generation_mode=modes.POSITIVE) | operation.as_strategy(generation_mode=modes.NEGATIVE)


__all__ = ["HERE", "Found", "fuzz", "fuzzed_box"]
