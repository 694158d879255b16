"""`driftbox decide`: explained answers as tables and JSON, and files that no JSON reader should fall over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge import cli


class Said:
    """What the command left behind."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code or 0, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def decide(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            cli.main(["decide", "ekya", *map(str, words)])
        printed = capsys.readouterr()
        return Said(ended.value.code, printed.out, printed.err)

    return call


PAIR: dict[str, Any] = {
    "window": {"seconds": 100.0},
    "capacity_pct": 200,
    "quantum_pct": 20,
    "policy": "optimal",
    "gpus": [{"id": "left"}, {"id": "right"}],
    "streams": [
        {"id": name, "quality": 0.5, "knobs": [{"name": "full", "demand_pct": 60, "quality_frac": 1.0}]} for name in ("A", "B")
    ],
}


def test_an_explanation_is_a_table(decide: Any, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text(json.dumps(PAIR))
    said = decide(tmp_path / "input.json", "--explain")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert ["A", "infer", "left", "60"] in lines
    assert any(line[:3] == ["A", "infer", "60"] and "'full'" in line for line in lines)
    assert "one quantum (20 pct) more of GPU: +0.0000" in said.out


def test_an_explanation_in_json(decide: Any, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text(json.dumps(PAIR))
    plain = decide(tmp_path / "input.json", "--json").json
    told = decide(tmp_path / "input.json", "--explain", "--json").json
    assert "explain" not in plain
    assert [job["stream"] for job in told["explain"]["jobs"]] == ["A", "B"]
    assert told["placement"] == plain["placement"] != []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1, column 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"capacity_pct": ' + "9" * 5000 + "}", "not usable"),
        ('{"streams": [], "window": {"seconds": 1, "seconds": 2}}', "'seconds' stands twice"),
        ("[]", "(input): must be a JSON object"),
        ("null", "(input): must be a JSON object"),
        ('{"capacity_pct": NaN}', "capacity_pct: "),
        ('{"window": {"seconds": Infinity}}', "window.seconds: "),
        ('{"window": {"seconds": 1e999}}', "window.seconds: "),
        ('{"window": {"seconds": ' + "9" * 400 + "}}", "window.seconds: "),
        ('{"streams": [{"id": "\\ud800"}]}', "streams[0].id: "),
        ('{"\\udfff": 1}', "(input): Input should be a valid string"),
    ],
)
def test_odd_files_are_refused_in_words(decide: Any, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    answer = decide(tmp_path / "odd.json")
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
