"""Rendered cameras over real RTSP on loopback: what arrives is what the scene shows, but for the codec."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from streams.rendered.serve import CameraScript

ROOT = Path(__file__).resolve().parents[2]
CAMERAS = [
    {"id": "one", "kind": "street", "seed": 5, "schedule": [[0, "day"]]},
    {"id": "two", "kind": "hall", "seed": 6, "schedule": [[0, "night"]], "width_px": 192, "height_px": 108},
]


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    config = tmp_path / "cameras.json"
    config.write_text(json.dumps(CAMERAS))
    command = [sys.executable, "-m", "streams.rendered.serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def first_picture(url: str) -> np.ndarray:
    options = {"rtsp_transport": "tcp", "analyzeduration": "0", "probesize": "32"}
    with av.open(url, options=options, timeout=10) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def test_cameras_serve_their_scenes(urls: dict[str, str]) -> None:
    assert set(urls) == {"one", "two"}
    for table in CAMERAS:
        script = CameraScript(id=str(table["id"]), kind=str(table["kind"]), seed=int(str(table["seed"])))
        seen = first_picture(urls[script.id])
        assert seen.shape == (table.get("height_px", 180), table.get("width_px", 320), 3)
        assert seen.std() > 5
    day, night = first_picture(urls["one"]), first_picture(urls["two"])
    background = CameraScript(id="one", kind="street", seed=5).scene().layout.background
    assert np.median(np.abs(day.astype(int) - background)) < 12
    assert night.mean() < 0.5 * day.mean()
