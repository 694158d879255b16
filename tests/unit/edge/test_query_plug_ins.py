"""Transforms that packages bring: the one of docs/serving.md, and packages that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from configs.errors import ConfigError, EnvironmentLacking, UsageError
from configs.load import parse_config
from configs.queries import TRANSFORMS, known_transforms
from edge.queries.base import Knob
from edge.queries.live import specs_of
from edge.queries.registry import build_node, problems_of, query_spec, transform_class
from edge.queries.runner import QueryRunner
from tests.support.plug_ins import DOCS, documented_code, make_package, on_path
from tests.support.query_scenes import COUNT, boxes, entries_of, free_meter, moving_scene, tools_of

CROWD = (
    "{name: crowd, nodes: [{transform: decode}, {transform: detect}, "
    "{transform: crowding, params: {limit: 2}, knobs: {frames: [50, 10]}}]}"
)
ODD = "{name: odd, nodes: [{transform: decode}, {transform: odd}]}"


def install(folder: Path, code: str, name: str = "odd", *, kind: str = "Odd", package: str = "driftbox-odd") -> None:
    module = package.replace("-", "_")
    make_package(folder, package, modules={module: code}, transforms={name: f"{module}:{kind}"})


def install_documented(folder: Path) -> None:
    code = documented_code("serving.md", '"""How crowded is it?')
    install(folder, code, "crowding", kind="Crowding", package="driftbox-crowding")


# --- the documented one -----------------------------------------------------------------------------------------------


def test_the_transform_of_the_documentation_works(tmp_path: Path) -> None:
    install_documented(tmp_path)
    with on_path(tmp_path):
        assert known_transforms() == (*TRANSFORMS, "crowding")
        usable, broken = specs_of(entries_of(CROWD, COUNT), task="detection")
        assert broken == {}
        assert usable[0].knobs["crowding.frames"] == Knob(name="frames", values=(50, 10), help="Over how many frames.")
        runner = QueryRunner(usable, tools_of()[0], meter=free_meter, clock_s=lambda: 0.0)
        for i in range(12):
            found = boxes(*([(10 + 40 * k, 10, 40 + 40 * k, 40) for k in range(5 if i < 2 else 2)]))
            outcomes = {o.query: o for o in runner.step(moving_scene(i, shown=found))}
        assert outcomes["crowd"].told["crowding"] == {"mean": 2.5, "crowded": True}
        runner.set_knobs("crowd", {"crowding.frames": 10})  # what it has seen is kept
        [crowd, _] = runner.step(moving_scene(12, shown=boxes((10, 10, 40, 40), (50, 10, 80, 40))))
        assert crowd.told["crowding"] == {"mean": 2.0, "crowded": False}
    assert known_transforms() == tuple(TRANSFORMS)


def test_the_documented_configuration_loads_and_runs() -> None:
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    text = page.split("## Queries")[1].split("```yaml\n")[1].split("```")[0]
    [camera] = parse_config(text).cameras
    assert len(yaml.safe_load(text)["cameras"][0]["queries"]) == len(camera.queries) == 4
    usable, broken = specs_of(camera.queries, task=camera.task)
    assert broken == {}
    tools, _ = tools_of(read_text=lambda image: [])
    runner = QueryRunner(usable, tools, meter=free_meter, clock_s=lambda: 0.0)
    told = {o.query: set(o.told) for o in runner.step(moving_scene(0, shown=boxes((10, 10, 40, 40))))}
    assert told == {
        "traffic": {"track", "lines"}, "crowd": {"count"}, "waiting": {"track", "dwell"}, "plate": {"read"},
    }  # fmt: skip


def test_the_page_names_every_transform_parameter_and_knob() -> None:
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    for name, facts in TRANSFORMS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |") and line.count("|") == 5)
        missing = [p for p in (*facts.params, *(k.name for k in facts.knobs)) if f"`{p}`" not in row]
        assert missing == [], name


# --- packages that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_module_anywhere", "cannot be imported (ModuleNotFoundError"),
        ("raise SystemExit(3)", "cannot be imported (SystemExit"),
        ("x = (", "cannot be imported (SyntaxError"),
        ("Odd = 3", "must name a class"),
        ("class Odd: pass", "it has no name; it has no knobs"),
        ("class Odd:\n    name, knobs, params, stateful = 'odd', (), (), False", "no method process"),
        (
            "from edge.queries.base import BaseTransform\n"
            "class Odd(BaseTransform):\n    name = 'odd'\n    def process(self): return None",
            "method process cannot be called",
        ),
        (
            "from edge.queries.base import BaseTransform\nclass Odd(BaseTransform):\n    name, knobs = 'odd', ('fast',)",
            "must be edge.queries.base.Knob",
        ),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_used_leaves_its_query_out_and_nothing_else(tmp_path: Path, code: str, says: str) -> None:
    install(tmp_path, code)
    with on_path(tmp_path):
        usable, broken = specs_of(entries_of(ODD, COUNT), task="detection")
        assert [spec.name for spec in usable] == ["count"]
        assert says in broken["odd"]
        assert "driftbox-odd" in broken["odd"]
        with pytest.raises(EnvironmentLacking):
            transform_class("odd")


def test_knobs_and_parameters_that_a_package_does_not_have(tmp_path: Path) -> None:
    install_documented(tmp_path)
    with on_path(tmp_path):
        knob = "{name: k, nodes: [{transform: decode}, {transform: detect}, {transform: crowding, knobs: {speed: [1]}}]}"
        param = "{name: p, nodes: [{transform: decode}, {transform: detect}, {transform: crowding, params: {colour: red}}]}"
        usable, broken = specs_of(entries_of(knob, param), task="detection")
        assert "crowding has no knob speed" in broken["k"]
        assert [spec.name for spec in usable] == ["p"]
        with pytest.raises(UsageError, match="no parameter colour"):
            build_node(usable[0].node("crowding"), tools_of()[0])


def test_two_packages_with_one_transform(tmp_path: Path) -> None:
    for number in (1, 2):
        install(tmp_path, "class Odd: pass", package=f"driftbox-odd{number}")
    with on_path(tmp_path), pytest.raises(UsageError, match="more than one package brings a transform 'odd'"):
        transform_class("odd")


def test_a_transform_nobody_has_any_more(tmp_path: Path) -> None:
    install(tmp_path, "class Odd: pass")
    with on_path(tmp_path):
        [entry] = entries_of(ODD)
    with pytest.raises(UsageError, match="there is no transform 'odd'"):
        query_spec(entry, task="detection")
    with pytest.raises(ConfigError):
        entries_of(ODD)


def test_a_built_in_transform_cannot_be_replaced(tmp_path: Path) -> None:
    install(tmp_path, "class Odd: pass", "count")
    with on_path(tmp_path):
        assert problems_of(transform_class("count")) == []
        assert transform_class("count").__module__ == "edge.queries.places"  # type: ignore[attr-defined]
