"""`driftbox simulate` as typed: table, JSON, sweep, plot, saved traces; wrong arguments end with code 2 and the field's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge import cli
from edge.simulate.sweep import Setting, grid, parse_sweep, run_sweep
from scheduler.registry import UNIFORM_FAMILY
from scheduler.trace import parse_trace
from tests.support.traces import random_trace

EKYA_TABLE = Path(__file__).resolve().parents[4] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
QUICK = ("--policy", "thief,no-retrain")


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(random_trace(streams=3, windows=2, options=2).model_dump_json(), encoding="utf-8")
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["simulate", *(str(word) for word in words)])
        printed = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), printed.out, printed.err

    return run


def test_the_table_has_a_row_per_policy_and_tells_the_speed(call: Any, trace_file: Path) -> None:
    code, out, err = call(trace_file, "--policy", "thief-repeat,uniform,no-retrain")
    assert code == 0
    rows = [line.split()[0] for line in out.splitlines()[1:9]]
    assert rows == ["thief-repeat", *UNIFORM_FAMILY, "no-retrain"]
    assert "high is c" in out
    assert "windows a minute" in out
    assert "100 %" in err


def test_json_is_one_document_in_the_documented_form(call: Any, trace_file: Path) -> None:
    code, out, _ = call(
        trace_file, *QUICK, "--json", "--streams", 2, "--gpus", 0.5, "--windows", 1, "--window-s", 50, "--quantum", 10,
        "--estimate", "static", "--min-quality", 0.2, "--profiles", "true", "--noise", 0.1, "--overhead-s", 1, "--seed", 3,
        "--devices", "--no-calibrate", "--no-prune", "--react", "--slaq", "sum", "--up-mbps", 10, "--down-mbps", 20,
    )  # fmt: skip
    assert code == 0
    answer = json.loads(out)
    assert [row["policy"] for row in answer["policies"]] == ["thief", "no-retrain"]
    for row in answer["policies"]:
        assert set(row) == {"policy", "mean_quality", "retrainings", "admitted", "gpu_s", "plans", "streams"}
        assert len(row["streams"]) == 2
        assert row["mean_quality"] == pytest.approx(sum(row["streams"].values()) / 2, abs=1e-6)
    assert answer["trace"] | {"streams": 3, "windows": 1} == answer["trace"]
    assert answer["setting"] == {
        "streams": 2, "gpus": 0.5, "window_s": 50.0, "quantum": 10, "noise": 0.1, "profiles": "true", "estimate": "static",
        "hold_out": False, "min_quality": 0.2, "overhead_s": 1.0, "devices": True, "calibrate": False, "prune": False,
        "react": True, "slaq": "sum",
        "network": {"up_mbps": 10.0, "down_mbps": 20.0, "up_mb": 160.0, "down_mb": 398.0}, "seed": 3,
    }  # fmt: skip


def test_equal_input_gives_equal_output(call: Any, trace_file: Path) -> None:
    words = (trace_file, *QUICK, "--json", "--noise", 0.2, "--sweep", "streams=1,3")
    assert call(*words)[1] == call(*words)[1]
    assert call(*words)[1] != call(*words, "--seed", 1)[1]


def test_a_sweep_is_one_table_and_one_plot(call: Any, trace_file: Path, tmp_path: Path) -> None:
    code, out, _ = call(trace_file, *QUICK, "--sweep", "streams=1,2 gpus=0.5,1", "--plot", tmp_path / "sweep.svg")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["streams", "gpus", "thief", "no-retrain"]
    assert [line[:2] for line in lines[1:5]] == [["1", "0.5"], ["1", "1"], ["2", "0.5"], ["2", "1"]]
    picture = (tmp_path / "sweep.svg").read_text(encoding="utf-8")
    assert picture.count(">no-retrain<") == 2, "one panel per number of GPUs"
    assert ">streams<" in picture


def test_the_sweep_in_json_names_every_point(call: Any, trace_file: Path) -> None:
    _, out, _ = call(trace_file, *QUICK, "--json", "--sweep", "noise=0,0.5", "--sweep", "window=50")
    answer = json.loads(out)
    assert answer["sweep"] == {"noise": [0.0, 0.5], "window": [50.0]}
    assert [p["at"] for p in answer["points"]] == [{"noise": 0.0, "window": 50.0}, {"noise": 0.5, "window": 50.0}]
    single = json.loads(call(trace_file, *QUICK, "--json", "--noise", 0.5, "--window-s", 50)[1])
    assert answer["points"][1]["policies"] == single["policies"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_single_run_is_drawn_over_its_windows(call: Any, trace_file: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"q.{ending}"
    assert call(trace_file, *QUICK, "--plot", file)[0] == 0
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG") if ending == "png" else b">window<" in data
    assert call(trace_file, *QUICK, "--plot", file)[0] == 0
    assert file.read_bytes() == data, "the same picture gives the same bytes"


def test_what_was_read_can_be_saved_and_read_again(call: Any, trace_file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    first = json.loads(call(trace_file, *QUICK, "--json", "--save-trace", saved)[1])
    assert parse_trace(saved.read_text(encoding="utf-8")) == parse_trace(trace_file.read_text(encoding="utf-8"))
    assert json.loads(call(saved, *QUICK, "--json")[1])["policies"] == first["policies"]


# --- wrong usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--streams", "9"), "streams"),
        (("--streams", "0"), "streams"),
        (("--gpus", "0"), "gpus"),
        (("--windows", "7"), "windows"),
        (("--quantum", "0"), "quantum"),
        (("--quantum", "5.5"), "quantum"),
        (("--noise", "-0.1"), "noise"),
        (("--min-quality", "1.1"), "min-quality"),
        (("--profiles", "guessed"), "profiles"),
        (("--estimate", "hopeful"), "estimate"),
        (("--slaq", "max"), "slaq"),
        (("--up-mbps", "5"), "down-mbps"),
        (("--down-mbps", "5"), "up-mbps"),
        (("--overhead-s", "-1"), "overhead-s"),
        (("--jobs", "3"), "jobs"),
        (("--sweep", "colour=1,2"), "sweep"),
        (("--sweep", "streams"), "sweep"),
        (("--sweep", "streams=two"), "sweep: streams"),
        (("--sweep", "streams=2,"), "sweep: streams"),
        (("--sweep", "streams=2,9"), "streams"),
        (("--sweep", "gpus=0"), "sweep: gpus"),
        (("--sweep", "noise=nan"), "sweep: noise"),
        (("--sweep", "streams=1 streams=2"), "sweep: streams"),
        (("--policy", "wish"), "policy"),
        (("--policy", ""), "policy"),
        (("--plot", "picture.gif"), "picture.gif"),
        (("--plot", "p.svg", "--sweep", "streams=1 gpus=1 noise=0"), "plot"),
    ],
)
def test_wrong_arguments_end_with_code_2_and_the_fields_name(
    call: Any, trace_file: Path, words: tuple[str, ...], field: str
) -> None:
    code, out, err = call(trace_file, *words)
    assert code == 2
    assert field in err
    assert "Traceback" not in out + err


def test_wrong_files_are_named(call: Any, tmp_path: Path) -> None:
    assert call(tmp_path / "none.json")[0] == 2
    (tmp_path / "torn.json").write_text('{"version": 1', encoding="utf-8")
    (tmp_path / "table.csv").write_text("city,epochs\na,5\n", encoding="utf-8")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for name in ("torn.json", "table.csv", "bytes.json"):
        code, _, err = call(tmp_path / name)
        assert (code, name in err) == (2, True)
    code, _, err = call(tmp_path)
    assert (code, "no journal" in err) == (3, True)


def test_an_error_in_json_is_a_document(call: Any, trace_file: Path) -> None:
    code, out, _ = call(trace_file, "--json", "--streams", "9")
    assert (code, json.loads(out)["error"]["subject"]) == (2, "streams")


def test_a_folder_that_does_not_take_the_picture(call: Any, trace_file: Path, tmp_path: Path) -> None:
    code, _, err = call(trace_file, *QUICK, "--plot", tmp_path / "nowhere" / "p.svg")
    assert code == 3
    assert "nowhere" in err


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_grid_varies_the_last_axis_fastest_and_leaves_the_rest() -> None:
    axes = parse_sweep(("streams=2,4", "window=100,200"))
    base = Setting(gpus=3.0)
    points = list(grid(base, axes))
    assert [(s.streams, s.window_s) for _, s in points] == [(2, 100.0), (2, 200.0), (4, 100.0), (4, 200.0)]
    assert all(s.gpus == 3.0 for _, s in points)
    assert list(grid(base, {})) == [({}, base)]


def test_two_processes_give_what_one_gives() -> None:
    trace = random_trace(streams=2, windows=1, options=2)
    told: list[float] = []
    one = run_sweep(trace, ("thief", "no-retrain"), Setting(), {"streams": (1, 2)}, progress=lambda _, f: told.append(f))
    two = run_sweep(trace, ("thief", "no-retrain"), Setting(), {"streams": (1, 2)}, jobs=2)
    assert one == two
    assert told == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.data
@pytest.mark.skipif(not EKYA_TABLE.exists(), reason="needs the authors' table in ../shared/data/traces")
def test_the_authors_table_makes_ten_streams_for_as_long_as_wanted(call: Any) -> None:
    code, out, _ = call(EKYA_TABLE, *QUICK, "--json", "--streams", 10, "--windows", 4, "--profiles", "true", "--gpus", 4)
    assert code == 0
    answer = json.loads(out)
    assert (answer["trace"]["windows"], answer["setting"]["overhead_s"]) == (4, 2.0)
    thief, idle = (row["mean_quality"] for row in answer["policies"])
    assert thief > idle + 0.02
