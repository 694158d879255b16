"""Third parties' pickles: what is kept, what is refused, and that nothing in them ever runs."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from configs.errors import WeightsError
from models import unpickle
from models.unpickle import ALLOWED, read_checkpoint, read_safetensors, restricted_load


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRIFTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class _Touches:
    """A pickle that creates a file when it is loaded in the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (os.system, (f"touch {self.path}",))


def test_the_trap_is_real_and_does_not_spring(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "evil.pt"
    torch.save({"model": _Touches(trace)}, path)
    with pytest.raises(WeightsError, match="was refused") as caught:
        read_checkpoint(path)
    assert not trace.exists(), "nothing ran"
    assert "nothing in it was run" in caught.value.remedy
    torch.load(path, weights_only=False)
    assert trace.exists(), "the ordinary unpickler would have run it"


@pytest.mark.parametrize("payload", ["builtins.eval", "builtins.getattr", "os.system", "subprocess.Popen", "builtins.exec"])
def test_callables_are_refused_by_name(payload: str, tmp_path: Path) -> None:
    module, name = payload.rsplit(".", 1)
    code = f"c{module}\n{name}\n(X\x02\x00\x00\x00ictR.".encode()  # calls it with 'ic'
    with pytest.raises(WeightsError):
        restricted_load(_zipped(tmp_path / "call.pt", b"\x80\x02" + code))


def test_an_allowed_name_gives_a_stand_in_not_the_class(tmp_path: Path) -> None:
    # Calls an allowed class with an argument: the real SiLU takes one, the stand-in takes none, so the load fails.
    code = b"\x80\x02ctorch.nn.modules.activation\nSiLU\n(\x88tR."
    with pytest.raises(WeightsError):
        restricted_load(_zipped(tmp_path / "call.pt", code))


def test_a_checkpoint_naming_a_top_level_models_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YOLOv5's old checkpoints name `models.yolo.Model`, and ours is called `models` too."""
    fake = types.ModuleType("models.yolo")

    class Model(nn.Module):
        def __setstate__(self, state: dict) -> None:
            raise AssertionError("code of the look-alike ran")

    Model.__module__, Model.__qualname__ = "models.yolo", "Model"
    fake.Model = Model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "models.yolo", fake)
    path = tmp_path / "yolov5.pt"
    torch.save({"model": Model()}, path)
    with pytest.raises(WeightsError, match=r"models\.yolo\.Model, which is not on the allow-list"):
        read_checkpoint(path)


def test_state_dict_names_order_and_values_equal_torchs(tmp_path: Path) -> None:
    """Built of allowed torch classes only, so the ordinary state_dict is there to compare with."""
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
    model = nn.Sequential(inner, nn.ModuleList([nn.Conv2d(4, 2, 1, bias=False), nn.Identity()])).half()
    path = tmp_path / "plain.pt"
    torch.save({"model": model, "ema": None, "epoch": 3}, path)
    state = read_checkpoint(path).state
    expected = model.float().state_dict()
    assert set(state) == set(expected)
    assert list(restricted_load(path).state) == list(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor)


def test_the_moving_average_wins(tmp_path: Path) -> None:
    model, average = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)
    path = tmp_path / "both.pt"
    torch.save({"model": nn.Sequential(model), "ema": nn.Sequential(average)}, path)
    assert torch.equal(read_checkpoint(path).state["0.weight"], average.weight.detach())


def test_a_plain_state_dict_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plain.pth"
    shared = torch.arange(4.0)
    torch.save(OrderedDict(a=shared, b=shared[:2], n=torch.tensor(7)), path)
    state = read_checkpoint(path).state
    assert torch.equal(state["b"], torch.tensor([0.0, 1.0]))
    assert state["n"].dtype == torch.int64


@pytest.mark.parametrize("content", [{"a": 1}, [torch.zeros(2)], {}, {"model": None}, {"model": "text"}])
def test_what_holds_no_weights_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "odd.pt"
    torch.save(content, path)
    with pytest.raises(WeightsError, match="cannot be read"):
        read_checkpoint(path)


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.95])
def test_a_truncated_file_is_refused(keep: float, tmp_path: Path) -> None:
    whole = io.BytesIO()
    torch.save({"weight": torch.zeros(5000)}, whole)
    data = whole.getvalue()
    path = tmp_path / "cut.pt"
    path.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(path)
    assert "cut.pt" in caught.value.message


def test_random_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "noise.pt"
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(WeightsError):
        read_checkpoint(path)


def test_the_pickle_is_read_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plain.pt"
    torch.save({"w": torch.ones(3)}, path)
    first = read_checkpoint(path)
    monkeypatch.setattr(unpickle, "restricted_load", lambda *a, **k: pytest.fail("read the pickle again"))
    again = read_checkpoint(path)
    assert torch.equal(first.state["w"], again.state["w"])
    assert again.meta["source_sha256"] == first.meta["source_sha256"]
    kept = sorted(p.name for p in (cache / "converted").iterdir())
    assert [name.removeprefix(first.meta["source_sha256"]) for name in kept] == [".safetensors", ".safetensors.sha256"]


def test_a_damaged_copy_is_made_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "plain.pt"
    torch.save({"w": torch.ones(3)}, path)
    read_checkpoint(path)
    kept = next((cache / "converted").glob("*.safetensors"))
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x7f")
    assert torch.equal(read_checkpoint(path).state["w"], torch.ones(3))


def test_an_unwritable_cache_is_named(tmp_path: Path, cache: Path) -> None:
    cache.write_bytes(b"a file where the folder should be")
    path = tmp_path / "plain.pt"
    torch.save({"w": torch.ones(3)}, path)
    with pytest.raises(WeightsError, match="cannot write converted weights") as caught:
        read_checkpoint(path)
    assert "DRIFTBOX_CACHE" in caught.value.remedy


def test_a_broken_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        read_safetensors(path)


def test_the_allow_list_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    path = tmp_path / "plain.pt"
    torch.save(nn.Sequential(nn.Conv2d(1, 1, 1)), path)
    read_checkpoint(path)
    assert set(torch.serialization.get_safe_globals()) == before


def test_every_allowed_name_is_a_layer_of_the_two_libraries() -> None:
    assert all(name.startswith(("torch.nn.modules.", "ultralytics.nn.")) for name in ALLOWED)


def test_reading_imports_no_third_partys_package(tmp_path: Path) -> None:
    """A checkpoint that names ultralytics classes is read in a process where ultralytics cannot be imported."""
    code = b"\x80\x02}X\x05\x00\x00\x00modelcultralytics.nn.tasks\nDetectionModel\n)\x81}X\x08\x00\x00\x00_buffers}sbs."
    path = _zipped(tmp_path / "names.pt", code)
    script = (
        "import sys; sys.modules['ultralytics'] = None\n"
        "from pathlib import Path\n"
        "from models.unpickle import restricted_load\n"
        "from configs.errors import WeightsError\n"
        f"try: restricted_load(Path({str(path)!r}))\n"
        "except WeightsError as e: print(e.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "it holds no tensors" in done.stdout, "read to its end: an empty detector"


def _zipped(path: Path, pickled: bytes) -> Path:
    """A torch checkpoint (a zip) around a hand-written pickle."""
    if pickled[-1:] != pickle.STOP:
        raise ValueError("a pickle ends with STOP")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/version", "3\n")
        archive.writestr("x/byteorder", "little")
    return path
