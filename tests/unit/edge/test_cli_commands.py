"""Commands as an operator and a program meet them: exit codes, JSON, messages without tracebacks, answers without torch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configs.errors import DriftboxError
from edge import cli
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store
from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from scheduler.types import ModelVersion

ROOT = Path(__file__).parents[3]
CANARY = "c4n4ry-s3cret"


class Said:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def driftbox(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        printed = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, printed.out, printed.err)

    return call


def write(folder: Path, text: str) -> Path:
    path = folder / "box.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_check_accepts_the_example(driftbox: Any) -> None:
    said = driftbox("check", ROOT / "configs/example.yaml")
    assert said.code == 0
    assert "is fine: 2 cameras and 1 switched off" in said.out
    assert driftbox("check", ROOT / "configs/example.yaml", "--json").json["cameras"] == ["gate", "dock", "recording"]


def test_check_lists_every_problem_and_exits_with_2(driftbox: Any, tmp_path: Path) -> None:
    path = write(tmp_path, f"web: {{prot: 1, port: 0}}\ncameras: [{{id: a, url: 'ftp://u:{CANARY}@h'}}]")
    said = driftbox("check", path)
    assert said.code == 2
    for part in ("3 problems", "web.prot: unknown key; did you mean 'port'?", "web.port: must be 1 to 65535", "cameras[0].url"):
        assert part in said.err
    assert said.out == ""
    as_json = driftbox("check", path, "--json")
    assert as_json.code == 2
    assert [p["path"] for p in as_json.json["error"]["problems"]] == ["web.port", "web.prot", "cameras[0].url"]
    assert CANARY not in said.err + as_json.out


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["chek"], 2, "No such command"),
        (["check"], 2, "Missing argument"),
        (["run", "--port", "99999"], 2, "--port"),
        (["check", "/no/such/file.yaml"], 2, "does not exist"),
        (["decide", "ekya", "/no/such.json"], 2, "cannot be read"),
        (["decide", "ekya"], 2, "needs an input file"),
        (["decide", "slaqq", "-"], 2, "unknown system"),
        (["replay", "/no/such/folder"], 3, "no journal"),
        (["models", "list", "--data-dir", "/no/such/folder"], 3, "no box has run"),
        (["fetch", "yolov99"], 3, "no published weights"),
        (["bench", "nothing"], 2, "no benchmark is called"),
        (["evaluate"], 2, "videos or a scenario"),
        (["evaluate", "x.mp4", "--policy", "theif"], 2, "unknown policy"),
    ],
)
def test_wrong_use_is_told_without_a_traceback(driftbox: Any, words: list[str], code: int, part: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull, encoding="utf-8"))  # noqa: SIM115
    said = driftbox(*words)
    assert said.code == code, said.err
    assert part in " ".join(said.err.replace("│", " ").split())
    assert "Traceback" not in said.err + said.out


def test_what_stands_after_a_benchmarks_name_is_its_own(driftbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr("edge.bench.run_benchmark", lambda name, arguments: given.append((name, list(arguments))))
    assert driftbox("bench", "ekya", "--seeds", "3", "--json", "out.json", "--help").code == 0
    assert driftbox("bench", "ekya", "--", "--seeds", "3").code == 0
    assert given == [("ekya", ["--seeds", "3", "--json", "out.json", "--help"]), ("ekya", ["--seeds", "3"])]
    assert driftbox("bench", "--json").json["benchmarks"]


def test_an_error_nobody_foresaw_is_one_line_and_debug_shows_more(driftbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise ValueError(f"rtsp://u:{CANARY}@h/x is odd")

    monkeypatch.setattr(cli, "load_config", fail)
    said = driftbox("check", "x.yaml")
    assert said.code == 1
    assert "unexpected ValueError: rtsp://***@h/x is odd" in said.err
    assert "Traceback" not in said.err
    for words in (["check", "x.yaml", "--debug"], ["--debug", "check", "x.yaml"]):
        loud = driftbox(*words)
        assert "Traceback" in loud.err
        assert CANARY not in loud.err + loud.out
    assert driftbox("check", "x.yaml", "--json").json["error"]["code"] == "unexpected"


@pytest.mark.parametrize("code", [1, 2, 3])
def test_our_errors_carry_their_exit_code(driftbox: Any, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    error = DriftboxError("the thing is bad", remedy="make it good")
    error.exit_code = code

    def fail(path: Path) -> None:
        raise error

    monkeypatch.setattr(cli, "load_config", fail)
    said = driftbox("check", "x.yaml")
    assert (said.code, said.err) == (code, "error: the thing is bad\n  what to do: make it good\n")


EKYA = {
    "window": {"seconds": 100.0, "overhead_s": 0.0},
    "capacity_pct": 100,
    "quantum_pct": 10,
    "min_quality": 0.0,
    "estimate": "static",
    "policy": "thief",
    "streams": [
        {
            "id": "A",
            "quality": 0.5,
            "knobs": [{"name": "full", "demand_pct": 20, "quality_frac": 1.0}],
            "retrain": [{"name": "cfg1", "end_quality": 0.9, "cost_gpu_s": 10.0}],
        }
    ],
}


def test_decide_answers_in_json(driftbox: Any, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text(json.dumps(EKYA))
    answer = driftbox("decide", "ekya", tmp_path / "input.json").json
    assert answer["streams"][0]["retrain"] == "cfg1"
    assert sum(s["infer_pct"] + s["train_pct"] for s in answer["streams"]) + answer["spare_pct"] == 100
    assert answer["plan_ms"] > 0


def test_decide_names_the_place_of_a_mistake(driftbox: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"a": 1,\n  b}')
    assert "line 2, column 3" in driftbox("decide", "ekya", tmp_path / "broken.json").err
    (tmp_path / "wrong.json").write_text(json.dumps(EKYA | {"capacity_pct": "much"}))
    said = driftbox("decide", "ekya", tmp_path / "wrong.json")
    assert said.code == 2
    assert "capacity_pct" in said.err


def test_decide_publishes_its_schema(driftbox: Any) -> None:
    schema = driftbox("decide", "ekya", "--schema").json
    assert "streams" in schema["input"]["properties"]
    assert "spare_pct" in schema["answer"]["properties"]


def test_cameras_are_listed_with_and_without_a_running_box(driftbox: Any, tmp_path: Path) -> None:
    text = """
cameras:
  - {id: gate, url: "rtsp://viewer:%s@192.0.2.1/x"}
  - {id: hall, url: "rtsp://192.0.2.2/x", enabled: false}
web: {port: %d}
"""
    said = driftbox("cameras", "list", write(tmp_path, text % (CANARY, 1)), "--json")
    assert CANARY not in said.out
    assert [(c["id"], c["url"], c["state"]) for c in said.json["cameras"]] == [
        ("gate", "rtsp://***@192.0.2.1/x", "not running"),
        ("hall", "rtsp://192.0.2.2/x", "switched off"),
    ]
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        live = driftbox("cameras", "list", write(tmp_path, text % (CANARY, port)), "--json").json
    assert live["running"] is True
    assert live["cameras"][0]["state"] == "live"


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder in which `gate` went base -> v1 (served) -> v2 (serves), and v3 was rejected."""
    root = tmp_path / "data"
    with DataFolder(root) as folder, Store(folder.db_path) as store:
        parent = None
        for number, name in enumerate(("base", "v1", "v2", "v3")):
            sha256 = hashlib.sha256(b"weights").hexdigest()
            version = ModelVersion(id=f"gate-{name}", stream="gate", parent=parent, arch="tinydet-edge", sha256=sha256)
            with folder.new_version("gate", version.id) as part:
                (part / "model.safetensors").write_bytes(b"weights")
                (part / "manifest.json").write_text(json.dumps({"sha256": sha256}))
            store.add_model(version, at_utc=1_790_000_000.0 + number, config={"name": "head"})
            if name == "v3":
                store.set_model_state(version.id, ModelState.REJECTED, reason="worse on held-out labels")
            else:
                store.serve(version.id, at_utc=1_790_000_000.0 + number, quality=0.5 + number / 10)
                parent = version.id
    return root


def test_models_are_listed_and_shown(driftbox: Any, data_dir: Path) -> None:
    rows = driftbox("models", "list", "--data-dir", data_dir, "--json").json["models"]
    assert [(r["id"], r["state"]) for r in rows] == [
        ("gate-base", "retired"),
        ("gate-v1", "retired"),
        ("gate-v2", "serving"),
        ("gate-v3", "rejected"),
    ]
    assert driftbox("models", "list", "--data-dir", data_dir, "--camera", "hall", "--json").json["models"] == []
    table = [line.split()[:3] for line in driftbox("models", "list", "--data-dir", data_dir).out.splitlines()]
    assert ["gate", "gate-v2", "serving"] in table
    shown = driftbox("models", "show", "gate-v3", "--data-dir", data_dir, "--json").json
    assert shown["reason"] == "worse on held-out labels"
    assert shown["files"]["model.safetensors"] == "7 bytes"
    assert "training.name" in driftbox("models", "show", "gate-v3", "--data-dir", data_dir).out
    assert driftbox("models", "show", "gate-v9", "--data-dir", data_dir).code == 2


def test_rollback_puts_the_version_before_back(driftbox: Any, data_dir: Path) -> None:
    said = driftbox("models", "rollback", "gate", "--data-dir", data_dir, "--json")
    assert said.json == {"camera": "gate", "before": "gate-v2", "after": "gate-v1", "warning": ""}
    with Store(data_dir / "driftbox.db") as store:
        assert store.serving()["gate"].id == "gate-v1"
        store.check()
    assert driftbox("models", "rollback", "gate", "gate-v2", "--data-dir", data_dir).code == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["gate", "gate-v3"], "was rejected: worse on held-out labels"),
        (["gate", "gate-v9"], "no model version"),
        (["hall"], "no serving model"),
    ],
)
def test_rollback_refuses_what_cannot_be(driftbox: Any, data_dir: Path, words: list[str], part: str) -> None:
    said = driftbox("models", "rollback", *words, "--data-dir", data_dir)
    assert said.code == 2
    assert part in said.err


def test_rollback_stops_at_the_first_model(driftbox: Any, data_dir: Path) -> None:
    driftbox("models", "rollback", "gate", "gate-base", "--data-dir", data_dir)
    assert "nothing to go back to" in driftbox("models", "rollback", "gate", "--data-dir", data_dir).err


def test_a_folder_in_use_may_be_read_and_rolled_back(driftbox: Any, data_dir: Path) -> None:
    with DataFolder(data_dir) as folder, Store(folder.db_path) as store:
        assert driftbox("models", "list", "--data-dir", data_dir).code == 0
        assert driftbox("models", "rollback", "gate", "--data-dir", data_dir).code == 0
        assert store.serving()["gate"].id == "gate-v1", "the running box sees it"


def test_a_version_whose_files_are_gone_cannot_serve(driftbox: Any, data_dir: Path) -> None:
    with DataFolder(data_dir) as folder:
        folder.remove_version("gate", "gate-v1")
    said = driftbox("models", "rollback", "gate", "--data-dir", data_dir)
    assert said.code == 3
    assert "files of gate-v1 are gone" in said.err


# --- as a process -----------------------------------------------------------------------------------------------------


def test_help_and_check_load_neither_torch_nor_opencv() -> None:
    program = (
        "import sys\n"
        "from edge.cli import main\n"
        "try:\n"
        f"    main(['check', {str(ROOT / 'configs/example.yaml')!r}])\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        "heavy = {'torch', 'cv2', 'av', 'numpy', 'fastapi', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_installed_command_answers(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "driftbox"
    good = subprocess.run(
        [command, "check", ROOT / "configs/example.yaml"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert good.returncode == 0, good.stderr
    bad = subprocess.run([command, "check", "nothing.yaml"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: configuration file nothing.yaml does not exist")
    assert "0.1.0" in subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
