"""docs/scheduler.md and docs/traces.md: every command shown parses, every picture and file is there, every policy is named."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from edge.bench import benchmarks
from edge.cli import app
from edge.simulate.sweep import AXES, parse_sweep
from scheduler.registry import POLICIES, known_policies, make_policy
from scheduler.trace import Trace, parse_trace

ROOT = Path(__file__).parents[3]
TABLE = ROOT.parent / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
PAGES = ("docs/scheduler.md", "docs/traces.md", "docs/commands.md")
_COMMAND = re.compile(r"`(driftbox (?:simulate|bench|evaluate|decide) [^`]+)`")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def shown_commands(page: str) -> list[str]:
    """Commands in shell blocks and in back quotes."""
    text = text_of(page)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in (*lines, *_COMMAND.findall(text)) if line.strip().startswith("driftbox ")]


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)[1:]


def parse(words: list[str]) -> Any:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return commands[words[0]].make_context(words[0], words[1:])


def bench_ekya() -> ModuleType:
    path = ROOT / "tests/benchmarks/bench_ekya.py"
    spec = importlib.util.spec_from_file_location("bench_ekya_for_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def simulate_and_bench() -> list[str]:
    found = [c for page in PAGES for c in shown_commands(page)]
    return [c for c in dict.fromkeys(found) if words_of(c)[0] in ("simulate", "bench") and "[" not in c]


@pytest.mark.parametrize("command", simulate_and_bench())
def test_every_command_shown_parses(command: str) -> None:
    words = words_of(command)
    context = parse(words)
    if words[0] == "simulate":
        parse_sweep(context.params["sweep"] or ())
        for policy in re.split(r",(?![^(]*\))", context.params["policy"]):
            make_policy(policy)
    else:
        assert words[1] in benchmarks()
        if words[1] == "ekya":
            bench_ekya().make_parser().parse_args(words[2:])


def test_there_are_commands_to_check() -> None:
    shown = simulate_and_bench()
    assert len([c for c in shown if "simulate" in c]) >= 4
    sections = {word for c in shown if c.startswith("driftbox bench ekya --only") for word in words_of(c)[3:]}
    assert set(bench_ekya().SECTIONS) <= sections, "every table of the benchmark stands on the page with its command"


def test_every_policy_is_explained() -> None:
    table = text_of("docs/scheduler.md").split("## Policies")[1].split("\n## ")[0]
    assert not [name for name in POLICIES if f"| `{name}` |" not in table]
    for family in known_policies():
        assert f"`{family.partition('(')[0]}" in table, family


@pytest.mark.parametrize("page", PAGES)
def test_pictures_links_and_files_are_there(page: str) -> None:
    text = text_of(page)
    linked = [t.partition("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if not t.startswith("http")]
    named = re.findall(r"`((?:scheduler|edge|tests|docs|configs)/[\w./-]+)`", text)
    missing = [t for t in linked if not (ROOT / "docs" / t).exists()] + [t for t in named if not (ROOT / t).exists()]
    assert not missing


def test_pictures_are_small() -> None:
    for name in re.findall(r"\(img/([\w.]+)\)", text_of("docs/scheduler.md")):
        assert (ROOT / "docs/img" / name).stat().st_size < 100_000, name


def test_every_table_of_the_page_can_be_made_anew() -> None:
    bench = bench_ekya()
    for name in bench.SECTIONS:
        page = bench.into_page(text_of("docs/scheduler.md"), name, "NEW NUMBERS")
        assert page.count("NEW NUMBERS") == 1
        assert page.count("<!-- end -->") == len(bench.SECTIONS)
        assert bench.into_page(page, name, "NEW NUMBERS") == page
    with pytest.raises(ValueError, match="table: gpus"):
        bench.into_page("# a page without tables", "gpus", "x")


@pytest.mark.data
@pytest.mark.skipif(not TABLE.exists(), reason="needs the authors' table in ../shared/data/traces")
def test_the_benchmark_prints_ours_beside_the_published_and_keeps_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = bench_ekya()
    words = ["--seeds", "1", "--windows", "1", "--only", "window", "--plots", str(tmp_path), "--json", str(tmp_path / "n.json")]
    assert bench.main(words) == 0
    out = capsys.readouterr().out
    assert "published Ekya" in out
    assert "windows a minute" in out
    numbers = json.loads((tmp_path / "n.json").read_text(encoding="utf-8"))["window"]
    idle, ours = numbers["no-retrain"], numbers[bench.EKYA]
    assert len(set(idle)) == 1, "without retraining the length of a window changes nothing"
    assert ours[-1] > ours[0] + 0.05
    assert f"{ours[-1]:.3f}" in out
    assert (tmp_path / "ekya_window.svg").stat().st_size > 1000


def test_every_axis_of_a_sweep_is_documented() -> None:
    row = next(line for line in text_of("docs/commands.md").splitlines() if line.startswith("| `--sweep`"))
    assert not [axis for axis in AXES if f"`{axis}`" not in row]


# --- the trace format -------------------------------------------------------------------------------------------------


def example() -> str:
    return re.findall(r"```json\n(.*?)```", text_of("docs/traces.md"), re.DOTALL)[0]


def test_the_example_trace_is_one() -> None:
    trace = parse_trace(example())
    assert trace.streams[0].windows[1].options[0].epoch_quality[-1] == trace.streams[0].windows[1].options[0].measured_quality


def test_every_field_of_the_format_stands_in_the_example_and_on_the_page() -> None:
    page, shown = text_of("docs/traces.md"), json.loads(example())

    def fields(model: object) -> set[str]:
        return {key for part in walk(model) for key in part}

    def walk(value: object) -> list[dict[str, object]]:
        if isinstance(value, dict):
            return [value, *(p for v in value.values() for p in walk(v))]
        return [p for v in value for p in walk(v)] if isinstance(value, list) else []

    schema = Trace.model_json_schema()
    known = {field for part in (schema, *schema["$defs"].values()) for field in part["properties"]}
    assert known == fields(shown)
    assert not [field for field in known if f"`{field}`" not in page and f'"{field}"' not in page]
