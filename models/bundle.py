"""A model version as one file that can be carried to another box: `NAME.driftbox`.

It is a plain zip of four files:

    manifest.json        what is known of the version (`models.versions.Manifest`)
    model.safetensors    its weights
    contents.json        schema, the sender's public key, name -> {sha256, bytes} of the two above
    contents.sig         Ed25519 signature of contents.json, byte for byte

Whoever reads one believes nothing: only these names, sizes bounded before and while reading, the signature before anything is parsed
that it covers, hashes, a public key from the reader's own list, no pickle, finite weights that fit their architecture. Nothing of a
bundle touches the disk before all that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from configs.errors import UsageError, WeightsError
from configs.files import fsync_path, storage_errors, temp_path
from models.keys import Signer, fingerprint, verify
from models.versions import MANIFEST_FILE, MODEL_FILE, Manifest, load_version, manifest_of, not_finite
from models.zoo import new_detector

SCHEMA = 1
CONTENTS, SIGNATURE = "contents.json", "contents.sig"
NAMES = (CONTENTS, SIGNATURE, MANIFEST_FILE, MODEL_FILE)
SUFFIX = ".driftbox"

#: Most bytes of one file, and of the zip's own directory.
MAX_JSON, MAX_WEIGHTS, MAX_DIRECTORY = 16 * 2**20, 2**30, 4096
_MOST = {CONTENTS: 2**16, SIGNATURE: 64, MANIFEST_FILE: MAX_JSON, MODEL_FILE: MAX_WEIGHTS}
_END_OF_ZIP, _END_BYTES = b"PK\x05\x06", 22


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """A bundle that was believed. signed_by: fingerprint of the key that signed it, '' when it carries no signature."""

    manifest: Manifest
    state: dict[str, torch.Tensor]
    signed_by: str


def write_bundle(folder: Path, out: Path, signer: Signer) -> None:
    """Writes the version in `folder` as a bundle, whole or not at all; an existing file is replaced.
    Raises WeightsError when the version is damaged, StorageError."""
    manifest = load_version(folder).manifest  # what is damaged is not passed on
    files = {name: (folder / name).read_bytes() for name in (MANIFEST_FILE, MODEL_FILE)}
    contents = {
        "schema": SCHEMA,
        "kind": "driftbox-model",
        "version": manifest.id,
        "public_key": base64.b64encode(signer.public).decode(),
        "files": {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()},
    }
    head = json.dumps(contents, indent=2, sort_keys=True).encode()
    part = temp_path(out)
    with storage_errors(out):
        try:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as bundle:
                for name, data in {CONTENTS: head, SIGNATURE: signer.sign(head), **files}.items():
                    bundle.writestr(zipfile.ZipInfo(name), data)  # no time of day: equal versions are equal files
            fsync_path(part)
            os.replace(part, out)
            fsync_path(out.parent)
        finally:
            part.unlink(missing_ok=True)


def read_bundle(path: Path, *, trusts: Callable[[str], bool], allow_unsigned: bool = False) -> Bundle:
    """A bundle whose every check has passed. trusts: does this box trust the key with that fingerprint? allow_unsigned: also take one
    that carries no signature, or that of an unknown key; a signature that is wrong is refused in any case.
    Raises UsageError (not trusted: the remedy says how to) or WeightsError (anything else that is wrong with it)."""
    files = _files(path)
    head = _json(path, CONTENTS, files[CONTENTS])
    signed_by = _signed_by(path, files, head, trusts, allow_unsigned)
    _check_contents(path, files, head)
    try:
        manifest = manifest_of(files[MANIFEST_FILE])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refused(path, f"its manifest is not usable: {_in_words(error)}") from error
    if manifest.sha256 != head["files"][MODEL_FILE]["sha256"]:
        raise _refused(path, "its manifest is of other weights")
    state = _state(path, files[MODEL_FILE])
    _check_state(path, manifest, state)
    return Bundle(manifest=replace(manifest, sha256=""), state=state, signed_by=signed_by)


# --- the zip ------------------------------------------------------------------------------------------------------------


def _files(path: Path) -> dict[str, bytes]:
    """The bundle's files by name, read within their bounds; the signature may be absent."""
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as bundle:
            infos = bundle.infolist()
            _check_names(path, [info.filename for info in infos])
            _check_sizes(path, infos)
            return {info.filename: _read(path, bundle, info) for info in infos}
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", subject=str(path), remedy="check the path") from error
    except (OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, zlib.error) as error:
        raise _refused(path, f"it is no whole zip: {_in_words(error)}") from error


def _check_directory(path: Path) -> None:
    """A directory of millions of names would fill the memory before the first of them is looked at."""
    size = path.stat().st_size
    if size > MAX_WEIGHTS + 2 * MAX_JSON:
        raise ValueError(f"{size} bytes are more than a bundle may have")
    with path.open("rb") as file:
        file.seek(max(0, size - _END_BYTES - 2**16))
        tail = file.read()
    at = tail.rfind(_END_OF_ZIP)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise zipfile.BadZipFile("it has no end, so it was cut off or is no zip")
    count, directory = struct.unpack_from("<HI", tail, at + 10)
    if count > len(NAMES) or directory > MAX_DIRECTORY:
        raise ValueError(f"{count} files in it, a bundle has {len(NAMES)}")


def _check_names(path: Path, names: list[str]) -> None:
    foreign = sorted(set(names) - set(NAMES))
    if foreign:
        raise _refused(path, f"it holds {foreign[0][:80]!r}, which is no part of a bundle")
    if len(set(names)) < len(names):
        raise _refused(path, "a name stands in it twice")
    missing = sorted(set(NAMES) - {SIGNATURE} - set(names))
    if missing:
        raise _refused(path, f"{missing[0]} is missing")


def _check_sizes(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    for info in infos:
        most = _MOST[info.filename]
        if info.file_size > most:
            raise _refused(path, f"{info.filename} would be {info.file_size} bytes, at most {most} are allowed")


def _read(path: Path, bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """One file. What it says of its size bounds what is read: a bomb is given up at the first byte too many."""
    with bundle.open(info) as file:
        data = file.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise _refused(path, f"{info.filename} has {len(data)} bytes or more, {info.file_size} were announced")
    return data


# --- who says so --------------------------------------------------------------------------------------------------------


def _signed_by(
    path: Path, files: Mapping[str, bytes], head: Mapping[str, Any], trusts: Callable[[str], bool], allow_unsigned: bool
) -> str:
    """The fingerprint of the trusted key that signed the contents ('' where that is not asked for)."""
    if SIGNATURE not in files:
        if allow_unsigned:
            return ""
        raise UsageError(
            f"{path} is not signed", subject=str(path), remedy="ask for a signed one, or import it with --allow-unsigned"
        )
    public = _public_key(path, head)
    if not verify(public, files[SIGNATURE], files[CONTENTS]):
        raise _refused(path, "its signature is wrong: it was changed on the way, or never signed by that key")
    name = fingerprint(public)
    if not trusts(name) and not allow_unsigned:
        raise UsageError(
            f"{path} is signed by the key {name}, which this box does not trust", subject=str(path),
            remedy="get the sender's key on another way and add it with `driftbox models trust KEYFILE`", code="untrusted",
        )  # fmt: skip
    return name


def _public_key(path: Path, head: Mapping[str, Any]) -> bytes:
    try:
        public = base64.b64decode(head["public_key"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _refused(path, "it names no public key") from error
    if len(public) != 32:
        raise _refused(path, "its public key is none")
    return public


def _check_contents(path: Path, files: Mapping[str, bytes], head: Mapping[str, Any]) -> None:
    schema, listed = head.get("schema"), head.get("files")
    if not isinstance(schema, int) or head.get("kind") != "driftbox-model":
        raise _refused(path, "it is not a bundle of a model")
    if schema > SCHEMA:
        raise _refused(path, f"it was written by a newer Driftbox (schema {schema}, known up to {SCHEMA})")
    if not isinstance(listed, dict) or set(listed) != {MANIFEST_FILE, MODEL_FILE}:
        raise _refused(path, "its list of files is not the one of a bundle")
    for name, said in listed.items():
        real = {"sha256": hashlib.sha256(files[name]).hexdigest(), "bytes": len(files[name])}
        if said != real:
            raise _refused(path, f"{name} does not have the checksum and size that the contents list")


def _json(path: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"{name} is not JSON") from error
    if not isinstance(found, dict):
        raise _refused(path, f"{name} is not an object")
    return found


# --- the weights --------------------------------------------------------------------------------------------------------


def _state(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    if data[:2] == b"PK" or (data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        raise _refused(path, "its weights are a pickle, which could run code here; only safetensors are read")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise _refused(path, "its weights are not safetensors") from error


def _check_state(path: Path, manifest: Manifest, state: dict[str, torch.Tensor]) -> None:
    bad = not_finite(state)
    if bad is not None:
        raise _refused(path, f"the weights hold numbers that are none (NaN or infinite), in {bad}")
    try:
        new_detector(manifest.spec, state=state)
    except UsageError as error:
        raise _refused(path, f"this Driftbox does not know its architecture: {error.message}") from error
    except (WeightsError, RuntimeError, ValueError, KeyError) as error:
        raise _refused(path, f"its weights are not those of a {manifest.spec.arch}: {_in_words(error)}") from error


def _refused(path: Path, why: str) -> WeightsError:
    return WeightsError(
        f"{path} is not imported: {why}", subject=str(path), code="bundle", remedy="export it anew and copy it again"
    )


def _in_words(error: Exception) -> str:
    text = error.message if isinstance(error, WeightsError) else str(error)
    return f"{text or type(error).__name__}"[:200]
