"""What the wiring gives to the maker of served forms: the newest samples of a camera, its task, and a way to be heard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from configs.load import parse_config
from edge.clock import SystemClock
from edge.form_making import PICTURES
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.wiring.models import serving_of
from models.fake import FakeDetector, scripted_image
from models.serving.served import Deferred
from models.tasks.detection import DETECTION
from scheduler.types import Frame
from streams.samples import SampleStore

Parts = tuple[DataFolder, Store, SampleStore]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with DataFolder(tmp_path) as folder, Store(folder.db_path) as store:
        yield folder, store, SampleStore(folder.samples_dir, max_windows=9, max_bytes=2**30)


def serving(parts: Parts, models: str = "{}", gpus: str = "{}"):  # type: ignore[no-untyped-def]
    config = parse_config(f'{{cameras: [{{id: yard, url: "rendered:yard"}}], models: {models}, gpus: {gpus}}}')
    return serving_of(config, *parts, SystemClock(), lambda camera: DETECTION)


def add(samples: SampleStore, window: int, seqs: range) -> None:
    for seq in seqs:
        frame = Frame(stream="yard", seq=seq, captured_s=float(seq), captured_utc=1e9 + seq, image=scripted_image(seq)[0])
        samples.add(frame, window)


def test_the_newest_pictures_of_the_last_windows_are_taken(parts: Parts) -> None:
    add(parts[2], 1, range(5))
    add(parts[2], 2, range(5, 9))
    add(parts[2], 3, range(9, 9 + PICTURES))
    pictures = serving(parts)._newest("yard")
    assert len(pictures) == PICTURES
    last = scripted_image(8 + PICTURES)[0]
    assert np.abs(pictures[-1].image.astype(int) - last).mean() < 6, "a JPEG of it"


def test_windows_are_joined_when_one_is_small(parts: Parts) -> None:
    add(parts[2], 1, range(5))
    add(parts[2], 2, range(5, 9))
    assert len(serving(parts)._newest("yard")) == 9


def test_without_samples_the_form_is_put_off(parts: Parts) -> None:
    assert list(serving(parts)._newest("yard")) == []
    assert isinstance(serving(parts).serve(FakeDetector(), "yard"), Deferred)


def test_why_a_model_serves_as_trained_is_a_note(parts: Parts) -> None:
    serving(parts)._tell("yard", "not served by openvino: rtsp://user:secret@host is no reason")
    [note] = parts[1].notes()
    assert (note.stream, note.code) == ("yard", "serving")
    assert "secret" not in note.text


def test_the_configuration_turns_it_off(parts: Parts) -> None:
    model = FakeDetector()
    off = serving(parts, "{serving: trained}")
    assert off.serve(model, "yard") is model
    assert off.serve_later(model, "yard") is model


def test_the_limit_of_building_comes_from_the_configuration(parts: Parts) -> None:
    made = serving(parts, "{serving: openvino, serving_build_s: 7}")
    assert (made._choice, made._build_s) == ("openvino", 7.0)
    made.close()


def test_forms_are_made_and_compared_on_the_gpu_of_the_models(parts: Parts) -> None:
    made = serving(parts, gpus="{device: cuda, backend: green}")
    assert (made._choice, made._device, made._child._device) == ("auto", "cuda", "cuda")
    assert made._tries == ("tensorrt-fp16", "tensorrt", "torch-compiled")
    made.close()
