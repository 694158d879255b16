"""What commands stand on: the environment, the client of a running box, benchmarks, tables."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from configs.errors import ConfigError, DriftboxError, EnvironmentLacking, UsageError
from configs.load import parse_config
from edge import bench, console, environment
from edge.client import running_status
from edge.web.fake import FakeSource
from edge.web.serve import WebServer


def test_the_weights_folder_is_handed_on_unless_the_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("DRIFTBOX_WEIGHTS", "x")
    monkeypatch.delenv("DRIFTBOX_WEIGHTS")
    environment.prepare(parse_config("models: {weights_dir: /srv/weights}"))
    assert os.environ["DRIFTBOX_WEIGHTS"] == "/srv/weights"
    environment.prepare(parse_config("models: {weights_dir: /srv/other}"))
    assert os.environ["DRIFTBOX_WEIGHTS"] == "/srv/weights", "what the operator has set stays"
    assert os.environ["YOLO_OFFLINE"] == "1"


def test_the_weights_variable_is_the_one_that_models_read() -> None:
    from models.weights import FOLDER_VARIABLE

    assert environment.WEIGHTS_VARIABLE == FOLDER_VARIABLE


def test_a_running_box_is_asked_and_anything_else_is_none() -> None:
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        status = running_status(parse_config(f"web: {{port: {port}}}"))
        assert status is not None
        assert status.box == "demo"
    assert running_status(parse_config(f"web: {{port: {port}}}")) is None
    assert running_status(parse_config("web: {enabled: false}")) is None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = parse_config(f"web: {{port: {silent.getsockname()[1]}}}")
        assert running_status(config, timeout_s=0.05) is None


def test_benchmarks_are_found_described_and_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tests" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "bench_good.py").write_text('"""Measures nothing.\n\nMore."""\nimport sys\nprint("given", sys.argv[1:])\n')
    (folder / "bench_bad.py").write_text('"""Fails."""\nraise SystemExit(4)\n')
    assert {name: about for name, (_, about) in bench.benchmarks(folder).items()} == {
        "bad": "Fails.",
        "good": "Measures nothing.",
    }
    bench.run_benchmark("good", ["--seconds", "1"], folder)
    assert capfd.readouterr().out == "given ['--seconds', '1']\n"
    with pytest.raises(DriftboxError, match="ended with code 4"):
        bench.run_benchmark("bad", [], folder)
    with pytest.raises(UsageError, match="nothing"):
        bench.run_benchmark("nothing", [], folder)
    with pytest.raises(EnvironmentLacking):
        bench.benchmarks(tmp_path)


def test_the_benchmarks_of_this_tree_say_what_they_measure() -> None:
    found = bench.benchmarks()
    assert {"plan", "shares"} <= set(found)
    assert all(about for _, about in found.values())


def test_tables_without_a_terminal_are_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(("camera", "f1", "on"), [("gate", 0.61239, True), ("a [b]", None, False)])
    assert capsys.readouterr().out == "camera  f1     on\ngate    0.612  yes\na [b]   -      no\n"


def test_errors_for_machines_hold_everything() -> None:
    error = ConfigError("2 problems", problems=(("a.b", "rtsp://u:pw@h is odd"),), subject="x.yaml", remedy="correct it")
    assert console.error_document(error) == {
        "error": {
            "code": "config",
            "message": "2 problems",
            "subject": "x.yaml",
            "remedy": "correct it",
            "problems": [{"path": "a.b", "text": "rtsp://***@h is odd"}],
        }
    }
    assert console.error_document(KeyError("x"))["error"]["code"] == "unexpected"


def test_a_line_for_machines_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    console.say_json_line("page: ä\nb")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"text": "page: ä\nb"}
