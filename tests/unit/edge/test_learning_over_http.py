"""`/api/v1/learning` and `/api/v1/queries`: what a box knows becomes what people read; bad requests, roles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.schema.queries import QueryEntry
from edge.api import make_app
from edge.before_after import Comparer, Sources
from edge.box_learning import BoxLearning
from edge.box_queries import BoxQueries
from edge.clock import SystemClock
from edge.jobs import Scoring
from edge.plan_book import PlanBook
from edge.profiler.asked import Asked, DefaultMenu, query_menu_of
from edge.profiler.live import LiveMenu
from edge.profiler.profile import CameraProfile, MeasuredOption, ProfilingCost, menu_of
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from edge.runtime import Watched
from edge.samples import FileSamples
from edge.store.plans import PlanStore
from edge.store.store import QualityPoint, Store
from edge.web.fake import FakeSource
from edge.web.fake_learning import FakeLearning, FakeQueries
from edge.web.services import Services
from edge.web.who import Role
from models.fake import FakeDetector
from models.tasks.detection import DETECTION
from scheduler.engine_state import BoxState, Expected, Running, StreamState
from scheduler.types import (
    CachedModel,
    Drift,
    DriftTest,
    FrameLook,
    KnobProfile,
    Look,
    ModelVersion,
    Observation,
    RetrainConfig,
    RetrainOption,
    Signature,
    StreamOutcome,
    Traits,
    WindowOutcome,
)
from tests.support.accounts import House
from tests.support.fakes import StillCamera
from tests.support.labelled_folder import labelled_folder

KNOBS = (
    KnobProfile(name="every", demand_pct=30, quality_frac=1.0, fps=5.0),
    KnobProfile(name="1/2", demand_pct=15, quality_frac=0.78, fps=2.5),
)
OPTION = RetrainOption(name="head", end_quality=0.7, cost_gpu_s=12.0)


def look(brightness: float) -> Look:
    frame = FrameLook(brightness=brightness, contrast=20.0, sharpness=3.0, objects=2.0, confidence=0.6)
    return Look(version="gate-000002", frames=(frame, frame))


def stream() -> StreamState:
    """A camera in the midst of its window."""
    state = StreamState(id="gate", knobs=KNOBS, version="gate-000002", quality=0.66, held_out=12)
    state.knob, state.infer_pct, state.train_pct, state.predicted, state.start_quality = "every", 30, 40, 0.6, 0.55
    state.look, state.reference = look(60.0), look(120.0)
    state.drift = Drift(drifted=True, magnitude=0.4, tests=(DriftTest(name="image", statistic=1.2, threshold=0.3),))
    state.signature = Signature(values=(0.0,) * 11)
    near = Signature(values=(0.1,) * 11)
    state.cached = (
        CachedModel(name="gate-000001", traits=Traits(), signature=near),
        CachedModel(name="gate-000000", traits=Traits()),
    )
    state.running = Running(
        job="gate/train/2", config=RetrainConfig(name="head", epochs=8), option=OPTION, start_quality=0.55, used_gpu_s=4.0, epoch=3,
        losses=[2.0, 1.0, 0.5], qualities=[(4, 0.62)], expected=Expected(path=(0.55, 0.6, 0.65)),
    )  # fmt: skip
    return state


def outcome(window: int, *, predicted: float | None, realised: float | None, **more: Any) -> WindowOutcome:
    seen = StreamOutcome(
        id="gate", start_quality=0.5, end_quality=0.6, predicted_quality=predicted, realised_quality=realised, **more
    )
    return WindowOutcome(
        window=window, opened_s=0.0, closed_s=1.0, streams=(seen,), predicted_quality=predicted, realised_quality=realised
    )


SEEN = Observation(
    stream="gate", window=1, option="head", start_quality=0.5, predicted_quality=0.66, realised_quality=0.6, predicted_gpu_s=10.0,
    realised_gpu_s=12.0,
)  # fmt: skip


class Box:
    """As much of a running box as the views look at."""

    def __init__(self, folder: Path) -> None:
        samples = labelled_folder(folder, windows=1)
        self.store = Store(folder / "driftbox.db")
        for number in range(3):
            version = ModelVersion(
                id=f"gate-00000{number}",
                stream="gate",
                parent=f"gate-00000{number - 1}" if number else None,
                arch="fake",
                sha256="x",
            )
            self.store.add_model(version, at_utc=number, config={"window": number - 1 if number else None})
            self.store.serve(version.id, at_utc=number)
            self.store.add_quality(
                QualityPoint(stream="gate", at_utc=100.0 * number, value=0.5 + 0.05 * number, kind="f1", version=version.id)
            )
        self.store.add_note(5.0, "labels", "gate's note", stream="gate")
        self.store.add_note(6.0, "labels", "yard's note", stream="yard")
        self.store.add_window(outcome(0, predicted=0.6, realised=0.62), opened_utc=0, closed_utc=100)
        learned = outcome(1, predicted=0.6, realised=0.2, retrained="head", admitted=True, observation=SEEN)
        self.store.add_window(learned, opened_utc=100, closed_utc=200)
        plans = PlanStore(self.store)
        for reasons in (
            ("gate: retrain 'head' on 40 %", "yard: nothing"),
            ("planned anew: so", "gate: retrain 'head' on 40 %"),
        ):
            plans.add(window=1, at_utc=150.0, policy="thief", expected_quality=0.6, spare_pct=0, reasons=reasons)
        state = BoxState(window=2, phase="planned", streams={"gate": stream()})
        worker = SimpleNamespace(version=lambda: "gate-000002")
        self.entry = Watched(
            camera=StillCamera("gate"), worker=worker, fps=5.0, height_px=0, title="The gate", arch="fake", knobs=KNOBS,  # type: ignore[arg-type]
            profiled_cost_s=0.01,
        )  # fmt: skip
        self.entry.run("every")
        parts = SimpleNamespace(store=self.store, engine=SimpleNamespace(state=state))
        self.runtime: Any = SimpleNamespace(
            watched={"gate": self.entry}, jobs={"gate/train/2": SimpleNamespace(stream="gate", kind="retraining")}, parts=parts,
            window_opened_utc=200.0,
        )  # fmt: skip
        book = PlanBook(plans, newest=lambda: None, policy=lambda: "thief", utc=lambda: 0.0)
        compared = Sources(
            detector=lambda version: FakeDetector(skill=1.0 if version == "gate-000002" else 0.0), samples=FileSamples(samples),
            windows=samples.windows, task_of=lambda camera: DETECTION, scoring=Scoring(),
        )  # fmt: skip
        self.learning = BoxLearning(self.runtime, book, Comparer(compared, rest=lambda s: None))
        self.queries = BoxQueries(self.runtime)
        self.client = TestClient(
            make_app(FakeSource(), Services(learning=self.learning, queries=self.queries)),
            base_url="http://127.0.0.1:8080", client=("127.0.0.1", 50_000),
        )  # fmt: skip


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    opened = Box(tmp_path)
    yield opened
    opened.store.close()


# --- learning -----------------------------------------------------------------------------------------------------------


def test_the_list(box: Box) -> None:
    [line] = box.client.get("/api/v1/learning").json()["cameras"]
    assert line == {
        "camera": "gate", "title": "The gate", "quality": 0.66, "quality_name": "F1", "version": "gate-000002", "drifted": True,
        "activity": "retraining", "retrainings": 1, "admitted": 1,
    }  # fmt: skip


def test_windows_have_their_band_their_reasons_and_what_came_of_them(box: Box) -> None:
    told = box.client.get("/api/v1/learning/gate").json()
    first, second, now = told["windows"]
    assert [w["window"] for w in told["windows"]] == [0, 1, 2]
    assert first["predicted_low"] < 0.6 < first["predicted_high"]
    assert (second["retrained"], second["admitted"], second["version"]) == ("head", True, "gate-000001")
    assert second["learned"]["promised_quality"] == 0.66
    assert second["why"] == ["retrain 'head' on 40 %"]  # said twice, told once; the other camera's is not
    assert (now["closed_utc"], now["realised"], now["predicted"]) == (None, None, 0.6)
    assert now["predicted_high"] - now["predicted_low"] > first["predicted_high"] - first["predicted_low"]
    assert told["band"] == {"windows": 2, "inside": 1, "expected_frac": 0.8}
    assert told["errors"] == {"retrainings": 1, "bias": pytest.approx(0.06), "sd": 0.0, "cost_ratio": 1.2}
    assert [p["version"] for p in told["history"]] == ["gate-000000", "gate-000001", "gate-000002"]
    assert [n["text"] for n in told["notes"]] == ["gate's note"]
    assert (told["before"], told["version"]) == ("gate-000001", "gate-000002")


def test_what_runs_and_how_the_scene_looks(box: Box) -> None:
    told = box.client.get("/api/v1/learning/gate").json()
    running = told["now"]["running"]
    assert (running["epoch"], running["epochs"], running["used_gpu_s"]) == (3, 8, 4.0)
    assert running["measured"] == [[4, 0.62]]
    assert running["left_gpu_s"] == pytest.approx(12.0 * 5 / 8)
    [signal] = told["drift"]["signals"]
    assert (signal["fired"], signal["words"]) == (True, "brightness, contrast, sharpness and tint of the picture")
    scene = {s["name"]: (s["now"], s["then"]) for s in told["scene"]}
    assert scene["brightness"] == (60.0, 120.0)
    [near] = told["near"]  # the one without a signature is not near
    assert near["version"] == "gate-000001"


def test_a_camera_that_has_just_come(box: Box) -> None:
    """No window, no plan, no look, one version."""
    box.runtime.parts.engine.state.streams["gate"] = StreamState(id="gate", knobs=KNOBS, version="gate-000002")
    with box.store.transaction() as db:
        for table in ("windows", "plans", "quality", "notes"):
            db.execute(f"DELETE FROM {table}")
    told = box.client.get("/api/v1/learning/gate").json()
    assert [w["window"] for w in told["windows"]] == [2]
    assert told["windows"][0]["predicted_low"] is None
    assert (told["drift"], told["scene"], told["near"], told["quality"]) == (None, [], [], None)
    box.runtime.parts.engine.state.streams.clear()  # the engine does not know it yet
    told = box.client.get("/api/v1/learning/gate").json()
    assert (told["windows"], told["now"]) == ([], None)


def test_before_and_after_of_the_serving_version_and_of_any_two(box: Box) -> None:
    told = box.client.get("/api/v1/learning/gate/before-after").json()
    assert (told["before"], told["after"]) == ("gate-000001", "gate-000002")
    assert (told["before_quality"], told["after_quality"]) == (0.0, 1.0)
    asked = {"before": "gate-000000", "after": "gate-000001", "pictures": 1}
    assert box.client.get("/api/v1/learning/gate/before-after", params=asked).json()["after"] == "gate-000001"


def test_versions_of_nobody_are_not_compared(box: Box) -> None:
    url = "/api/v1/learning/gate/before-after"
    assert box.client.get(url, params={"before": "yard-000001"}).status_code == 404
    assert box.client.get(url, params={"before": "../../x"}).status_code == 422
    assert box.client.get(url, params={"pictures": 1000}).status_code == 422
    with box.store.transaction() as db:
        db.execute("DELETE FROM models WHERE id != 'gate-000002'")
    first = box.client.get(url)
    assert first.status_code == 404
    assert "still has its first model" in first.json()["detail"]


@pytest.mark.parametrize("path", ["learning/nobody", "learning/nobody/before-after", "queries/nobody"])
def test_unknown_cameras(box: Box, path: str) -> None:
    assert box.client.get(f"/api/v1/{path}").status_code == 404


@pytest.mark.parametrize(
    "path", ["learning/GATE", "learning/..%2fx", "learning/gate?windows=0", "learning/gate?windows=x", "queries/A"]
)
def test_what_cannot_be_a_camera_or_a_number(box: Box, path: str) -> None:
    assert box.client.get(f"/api/v1/{path}").status_code in (404, 422)


def test_before_the_first_frame_a_fake_answers_like_a_box() -> None:
    """The fake of the pages has the same schema: what the pages are tested with is what they get."""
    client = TestClient(make_app(FakeSource(), Services(learning=FakeLearning(), queries=FakeQueries())))
    for path in ("learning", "learning/gate", "learning/gate/before-after", "queries", "queries/gate"):
        assert client.get(f"/api/v1/{path}").status_code == 200


# --- queries ------------------------------------------------------------------------------------------------------------


def with_queries(box: Box, *entries: QueryEntry) -> CameraQueries:
    specs, broken = specs_of(entries, task="detection")
    queries = CameraQueries(specs, Tools(camera_id="gate", fps=5.0, score_min=0.25), clock=SystemClock(), broken=broken)
    box.entry.queries = queries
    return queries


ENTRANCE = QueryEntry(name="entrance", template="lines", lines={"door": ((0.1, 0.5), (0.9, 0.5))}, knobs={"decode.fps": (5, 2)})


def profile(camera: str, **more: Any) -> CameraProfile:
    options = tuple(
        MeasuredOption(name=name, setting={"decode.fps": fps}, quality=quality, device_s=device_s, cpu_s=0.1, fps=fps)
        for name, fps, quality, device_s in (("five", 5, 0.9, 0.3), ("two", 2, 0.6, 0.1), ("dear", 5, 0.5, 0.6))
    )
    cost = ProfilingCost(search_s=1.0, settings=3, of_settings=6, took_s=4.0)
    return CameraProfile(
        camera=camera, task="detection", model="fake", golden="golden", source="rtsp://user:s3cret@cam/1", clip_s=60, frames=300, fps=5,
        watched_fps=5, options=options, cost=cost, **more,
    )  # fmt: skip


def test_what_a_plan_may_choose_from(box: Box) -> None:
    [camera] = box.client.get("/api/v1/queries").json()["cameras"]
    assert [(s["name"], s["in_force"]) for s in camera["settings"]] == [("every", True), ("1/2", False)]
    assert (camera["measured"], camera["profile"], camera["queries"]) == (False, None, [])


def test_a_query_is_a_graph_with_knobs_and_a_profile(box: Box) -> None:
    with_queries(box, ENTRANCE)
    box.store.add_profile("gate/entrance", profile("gate/entrance").model_dump_json(), 0.0)
    answer = box.client.get("/api/v1/queries/gate")
    assert "s3cret" not in answer.text
    [query] = answer.json()["queries"]
    assert query["state"] == "waiting"
    nodes = {n["id"]: n for n in query["graph"]}
    assert [n["id"] for n in query["graph"] if n["answers"]] == ["lines"]
    assert all(known in nodes for n in nodes.values() for known in n["inputs"])
    knob = next(k for n in nodes.values() for k in n["knobs"] if k["name"] == "decode.fps")
    assert (knob["value"], knob["values"]) == (5, [5, 2])
    points = {p["name"]: p for p in query["profile"]["points"]}
    assert {name: (p["on_front"], p["in_force"]) for name, p in points.items()} == {
        "five": (True, True), "two": (True, False), "dear": (False, False),
    }  # fmt: skip
    assert (points["five"]["demand_pct"], points["five"]["device_pct"]) == (40.0, 30.0)


def test_a_knob_is_turned_and_the_rest_stays(box: Box) -> None:
    queries = with_queries(box, ENTRANCE)
    put = lambda setting, query="entrance": box.client.put(f"/api/v1/queries/gate/{query}/knobs", json={"setting": setting})  # noqa: E731
    before = dict(queries.runner.queries["entrance"].setting)
    assert put({"decode.fps": 2}).status_code == 200
    assert queries.runner.queries["entrance"].setting == before | {"decode.fps": 2}
    for setting, status in (({"decode.fps": 3}, 400), ({"nothing.here": 1}, 400), ({}, 422), ({"decode.fps": [1]}, 422)):
        assert put(setting).status_code == status, setting
    assert put({"decode.fps": 5}, "unknown").status_code == 404
    assert queries.runner.queries["entrance"].setting["decode.fps"] == 2
    box.entry.queries = None
    assert put({"decode.fps": 5}).status_code == 404


def test_what_the_plan_chooses_for_queries_is_told(box: Box) -> None:
    queries = with_queries(box, ENTRANCE)
    menu = query_menu_of(profile("gate/entrance"), queries.specs()["entrance"])
    assert menu is not None
    box.entry.asked = Asked(menus={"entrance": menu})
    told = box.client.get("/api/v1/queries/gate").json()
    assert told["queries"][0]["planned"]
    # Half the frames with the query at its best needs less than all of them with the cheap setting, and is better: nobody chooses that.
    assert [(s["fps"], s["queries"]) for s in told["settings"]] == [
        (5.0, {"entrance": {"decode.fps": 5}}), (2.5, {"entrance": {"decode.fps": 5}}),
    ]  # fmt: skip
    assert [s["in_force"] for s in told["settings"]] == [box.runtime.parts.engine.state.streams["gate"].knob == "every", False]


def test_a_default_menu_is_planned_with_once_its_cost_is_known(box: Box) -> None:
    menu = query_menu_of(profile("gate/entrance"), with_queries(box, ENTRANCE).specs()["entrance"])
    assert menu is not None
    defaults = {"entrance": DefaultMenu(menu=menu, usual={"decode.fps": 5})}
    planned = []
    for flat_pct in (0.0, 10.0):
        box.entry.asked = Asked(flat_pct=flat_pct, defaults=defaults)
        planned.append(box.client.get("/api/v1/queries/gate").json()["queries"][0]["planned"])
    assert planned == [False, True]


def test_a_query_that_cannot_run_is_told_without_a_graph(box: Box) -> None:
    broken = QueryEntry.model_validate({"name": "odd", "nodes": [{"transform": "decode"}, {"transform": "from-nowhere"}]})
    with_queries(box, broken)
    [query] = box.client.get("/api/v1/queries/gate").json()["queries"]
    assert (query["state"], query["graph"]) == ("unusable", [])
    assert query["reason"]
    assert box.client.put("/api/v1/queries/gate/odd/knobs", json={"setting": {"a.b": 1}}).status_code in (400, 404)


def test_a_profile_that_is_not_used_says_so(box: Box) -> None:
    box.store.add_profile("gate", profile("gate").model_dump_json(), 0.0)
    told = box.client.get("/api/v1/queries/gate").json()
    assert "made for something else" in told["profile_problem"]
    assert told["profile"]["points"][0]["name"] == "five"
    box.store.add_profile("gate", "{broken", 0.0)
    told = box.client.get("/api/v1/queries/gate").json()
    assert "damaged" in told["profile_problem"]
    assert told["profile"] is None


def test_the_setting_in_force_is_marked_where_the_profile_is_used(box: Box) -> None:
    box.store.add_profile("gate", profile("gate").model_dump_json(), 0.0)
    menu = menu_of(profile("gate"))
    assert menu is not None
    box.entry.menu = LiveMenu(version=1, menu=menu)
    points = box.client.get("/api/v1/queries/gate").json()["profile"]["points"]
    assert [p["name"] for p in points if p["in_force"]] == ["five"]


def test_who_may_turn_knobs(tmp_path: Path) -> None:
    house, source = House(tmp_path), FakeQueries()
    for role, status in ((Role.VIEWER, 403), (Role.OPERATOR, 200)):
        client = house.signed_in(role, services=Services(queries=source))
        assert client.get("/api/v1/queries").status_code == 200
        answer = client.put("/api/v1/queries/gate/entrance/knobs", json={"setting": {"decode.fps": 2}})
        assert answer.status_code == status
    assert source.by == "operator"
    house.close()


def test_outcomes_of_other_cameras_are_not_told(box: Box) -> None:
    other = outcome(3, predicted=0.1, realised=0.1)
    elsewhere = replace(other, streams=(replace(other.streams[0], id="yard"),))
    box.store.add_window(elsewhere, opened_utc=200, closed_utc=300)
    assert [w["window"] for w in box.client.get("/api/v1/learning/gate").json()["windows"]] == [0, 1, 2]
