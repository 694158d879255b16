"""Bundles: what was exported comes back, and whatever was changed on the way, or is no bundle at all, is refused in words."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pickle
import stat
import struct
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import DriftboxError, StorageError, UsageError, WeightsError
from models import bundle as bundles
from models.bundle import CONTENTS, SIGNATURE, read_bundle, write_bundle
from models.detector import DetectorSpec
from models.keys import KeyRing, Signer, fingerprint, public_pem, read_public, verify
from models.versions import MANIFEST_FILE, MODEL_FILE, Manifest, save_version
from scheduler.types import RetrainConfig, Signature
from tests.support.fakes import put_fakes_in_the_zoo

STATE = {"skill": torch.tensor([0.75])}


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    put_fakes_in_the_zoo(monkeypatch)


class Place:
    def __init__(self, root: Path) -> None:
        self.ring = KeyRing(root)
        self.version = root / "cam1-000002"
        self.version.mkdir(parents=True)
        self.file = root / "cam1-000002.driftbox"
        self.manifest = Manifest(
            id="cam1-000002", stream="cam1", parent="cam1-000001", spec=DetectorSpec(arch="fake", input_px=128),
            config=RetrainConfig(name="full"), window=4, created_utc=5.0, samples=("f1",), quality={"f1": 0.7}, gpu_s=3.0,
            signature=Signature(values=(0.5,)),
        )  # fmt: skip

    def export(self, state: dict[str, torch.Tensor] | None = None, manifest: Manifest | None = None) -> Path:
        save_version(self.version, manifest or self.manifest, state or STATE)
        write_bundle(self.version, self.file, self.ring.signer())
        return self.file

    def read(self, **options: Any) -> bundles.Bundle:
        return read_bundle(self.file, trusts=self.ring.trusts, **options)

    def refused(self, part: str, **options: Any) -> None:
        with pytest.raises((WeightsError, UsageError)) as caught:
            self.read(**options)
        assert part in str(caught.value)
        assert caught.value.remedy


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def files_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def rewrite(path: Path, files: dict[str, bytes], *, compressed: bool = False) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as bundle:
        for name, data in files.items():
            bundle.writestr(name, data)


def signed(files: dict[str, bytes], signer: Signer, /, **changes: Any) -> dict[str, bytes]:
    """The same bundle with other files or contents, signed properly: what a sender who means ill, or errs, could make."""
    inner = {name: data for name, data in files.items() if name in (MANIFEST_FILE, MODEL_FILE)}
    contents = json.loads(files[CONTENTS]) | {
        "public_key": base64.b64encode(signer.public).decode(),
        "files": {n: {"sha256": hashlib.sha256(d).hexdigest(), "bytes": len(d)} for n, d in inner.items()},
    }
    head = json.dumps(contents | changes).encode()
    return {CONTENTS: head, SIGNATURE: signer.sign(head), **inner}


def with_weights(files: dict[str, bytes], weights: bytes) -> dict[str, bytes]:
    """Other weights, with a manifest that says they are right."""
    manifest = json.loads(files[MANIFEST_FILE]) | {"sha256": hashlib.sha256(weights).hexdigest()}
    return {**files, MODEL_FILE: weights, MANIFEST_FILE: json.dumps(manifest).encode()}


def test_what_was_exported_comes_back(place: Place) -> None:
    place.export()
    found = place.read()
    assert found.manifest == replace(place.manifest, sha256="")
    assert torch.equal(found.state["skill"], STATE["skill"])
    assert found.signed_by == fingerprint(place.ring.signer().public)


def test_equal_versions_are_equal_files_and_a_plain_zip(place: Place) -> None:
    first = place.export().read_bytes()
    write_bundle(place.version, place.file, place.ring.signer())
    assert place.file.read_bytes() == first
    assert set(files_of(place.file)) == set(bundles.NAMES)
    assert not list(place.file.parent.glob(".tmp-*"))


def test_a_repacked_bundle_is_the_same_bundle(place: Place) -> None:
    files = files_of(place.export())
    rewrite(place.file, dict(reversed(files.items())), compressed=True)
    assert place.read().manifest.id == "cam1-000002"


def test_a_damaged_version_is_not_passed_on(place: Place) -> None:
    place.export()
    weights = place.version / MODEL_FILE
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(WeightsError, match="damaged"):
        write_bundle(place.version, place.file, place.ring.signer())


# --- who signed it ------------------------------------------------------------------------------------------------------


def test_a_stranger_is_refused_until_he_is_trusted(place: Place, tmp_path: Path) -> None:
    place.export()
    here = KeyRing(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="which this box does not trust") as caught:
        read_bundle(place.file, trusts=here.trusts)
    assert "models trust" in caught.value.remedy
    assert here.trust(place.ring.public_file) == fingerprint(place.ring.signer().public)
    assert read_bundle(place.file, trusts=here.trusts).signed_by in here.trusted()
    here.distrust(here.trusted()[0])
    with pytest.raises(UsageError, match="does not trust"):
        read_bundle(place.file, trusts=here.trusts)
    assert read_bundle(place.file, trusts=here.trusts, allow_unsigned=True).signed_by, "said by whom, although nobody knows him"
    with pytest.raises(UsageError, match="no trusted key"):
        here.distrust("0" * 32)


def test_without_a_signature_only_when_told(place: Place) -> None:
    files = files_of(place.export())
    del files[SIGNATURE]
    rewrite(place.file, files)
    place.refused("is not signed")
    assert place.read(allow_unsigned=True).signed_by == ""


@pytest.mark.parametrize("allow_unsigned", [False, True])
def test_a_wrong_signature_is_refused_in_any_case(place: Place, allow_unsigned: bool) -> None:
    files = files_of(place.export())
    files[SIGNATURE] = bytes(64)
    rewrite(place.file, files)
    place.refused("its signature is wrong", allow_unsigned=allow_unsigned)
    other = KeyRing(place.file.parent / "other").signer()
    files[SIGNATURE] = other.sign(files[CONTENTS])
    rewrite(place.file, files)
    place.refused("its signature is wrong", allow_unsigned=allow_unsigned)


def test_contents_changed_after_signing_are_refused(place: Place) -> None:
    files = files_of(place.export())
    files[CONTENTS] = files[CONTENTS].replace(b"cam1-000002", b"cam1-000003")
    rewrite(place.file, files)
    place.refused("its signature is wrong")


@pytest.mark.parametrize("name", [MANIFEST_FILE, MODEL_FILE])
def test_a_file_with_a_wrong_hash_is_refused(place: Place, name: str) -> None:
    files = files_of(place.export())
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    rewrite(place.file, files)
    place.refused(f"{name} does not have the checksum")


def test_a_manifest_of_other_weights_is_refused(place: Place) -> None:
    files = files_of(place.export())
    files[MODEL_FILE] = safetensors.torch.save({"skill": torch.tensor([0.1])})
    rewrite(place.file, signed(files, place.ring.signer()))
    place.refused("its manifest is of other weights")


# --- what is in it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [pickle.dumps({"skill": 0.5}), pickle.dumps({"a": 1}, protocol=2), b"".join([b"PK\x03\x04", bytes(100)])],
    ids=["pickle", "old pickle", "torch.save"],
)
def test_a_pickle_is_refused_without_being_opened(place: Place, weights: bytes) -> None:
    files = with_weights(files_of(place.export()), weights)
    rewrite(place.file, signed(files, place.ring.signer()))
    place.refused("its weights are a pickle")


def test_a_real_checkpoint_of_torch_is_refused(place: Place) -> None:
    saved = io.BytesIO()
    torch.save(STATE, saved)
    rewrite(place.file, signed(with_weights(files_of(place.export()), saved.getvalue()), place.ring.signer()))
    place.refused("its weights are a pickle")


@pytest.mark.parametrize("weights", [b"", b"\x00" * 40, b'{"a": 1}', struct.pack("<Q", 2**60) + b"{}"])
def test_what_is_no_safetensors_is_refused(place: Place, weights: bytes) -> None:
    rewrite(place.file, signed(with_weights(files_of(place.export()), weights), place.ring.signer()))
    place.refused("its weights are not safetensors")


def test_weights_of_another_architecture_are_refused(place: Place) -> None:
    files = with_weights(files_of(place.export()), safetensors.torch.save({"layer.weight": torch.ones(3, 3)}))
    rewrite(place.file, signed(files, place.ring.signer()))
    place.refused("its weights are not those of a fake")


def test_an_architecture_that_nobody_knows_is_refused(place: Place) -> None:
    place.export(manifest=replace(place.manifest, spec=DetectorSpec(arch="yolo99z", input_px=320)))
    place.refused("does not know its architecture")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(place: Place, bad: float) -> None:
    place.export(state={"skill": torch.tensor([bad])})
    place.refused("in skill")


def test_a_newer_schema_is_refused_and_says_so(place: Place) -> None:
    files = files_of(place.export())
    rewrite(place.file, signed(files, place.ring.signer(), schema=bundles.SCHEMA + 1))
    place.refused("written by a newer Driftbox")
    manifest = json.dumps(json.loads(files[MANIFEST_FILE]) | {"schema": 99}).encode()
    rewrite(place.file, signed({**files, MANIFEST_FILE: manifest}, place.ring.signer()))
    place.refused("written by a newer Driftbox")


@pytest.mark.parametrize("manifest", [b"", b"[]", b"{}", b"{", b'{"schema": "1"}', b"[" * 100_000])
def test_a_manifest_that_is_none_is_refused(place: Place, manifest: bytes) -> None:
    rewrite(place.file, signed({**files_of(place.export()), MANIFEST_FILE: manifest}, place.ring.signer()))
    place.refused("its manifest is not usable")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"kind": "something"}, "not a bundle of a model"),
        ({"schema": "1"}, "not a bundle of a model"),
        ({"files": []}, "list of files"),
        ({"files": {MODEL_FILE: {}}}, "list of files"),
        ({"public_key": "!"}, "names no public key"),
        ({"public_key": None}, "names no public key"),
        ({"public_key": "AAAA"}, "public key is none"),
    ],
)
def test_contents_that_are_none_are_refused(place: Place, changes: dict[str, Any], part: str) -> None:
    rewrite(place.file, signed(files_of(place.export()), place.ring.signer(), **changes))
    place.refused(part)


# --- the zip ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/cron.d/x", "C:\\x", "model.pkl", "sub/model.safetensors"])
def test_names_that_lead_elsewhere_are_refused_and_nothing_is_written(place: Place, name: str) -> None:
    files = files_of(place.export())
    del files[SIGNATURE]
    rewrite(place.file, {**files, name: b"x"})
    before = sorted(place.file.parent.rglob("*"))
    place.refused("which is no part of a bundle")
    assert sorted(place.file.parent.rglob("*")) == before


@pytest.mark.parametrize("missing", [CONTENTS, MANIFEST_FILE, MODEL_FILE])
def test_a_missing_file_is_named(place: Place, missing: str) -> None:
    files = files_of(place.export())
    del files[missing]
    rewrite(place.file, files)
    place.refused(f"{missing} is missing")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_twice_is_refused(place: Place) -> None:
    files = files_of(place.export())
    with zipfile.ZipFile(place.file, "w") as bundle:
        for name in (CONTENTS, MANIFEST_FILE, MODEL_FILE, MODEL_FILE):
            bundle.writestr(name, files[name])
    place.refused("twice")


def test_a_bomb_that_says_how_large_it_is_is_refused_unread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bundles._MOST, MANIFEST_FILE, 1000)
    rewrite(place.file, {**files_of(place.export()), MANIFEST_FILE: bytes(50_000_000)}, compressed=True)
    assert place.file.stat().st_size < 100_000
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was opened"))
    place.refused("would be 50000000 bytes")


def test_a_bomb_that_lies_about_its_size_is_given_up(place: Place) -> None:
    files = files_of(place.export())
    rewrite(place.file, {**files, MANIFEST_FILE: bytes(5_000_000)}, compressed=True)
    data = bytearray(place.file.read_bytes())
    data = data.replace(struct.pack("<I", 5_000_000), struct.pack("<I", 100))
    place.file.write_bytes(data)
    place.refused("is not imported")


def test_a_directory_of_a_million_names_is_refused_unread(place: Place) -> None:
    with zipfile.ZipFile(place.file, "w") as bundle:
        for number in range(3000):
            bundle.writestr(f"f{number}", b"")
    place.refused("3000 files in it")


def test_a_file_that_is_not_there_is_a_wrong_call(place: Place) -> None:
    place.refused("there is no file")


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"hello", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_zip_is_refused(place: Place, content: bytes) -> None:
    place.file.write_bytes(content)
    place.refused("is not imported")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 0.999))
def test_a_truncated_bundle_is_refused_wherever_it_ends(place: Place, cut: float) -> None:
    data = whole(place)
    place.file.write_bytes(data[: int(cut * len(data))])
    place.refused("is not imported")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 0.9999), flip=st.integers(1, 255))
def test_one_changed_byte_is_refused_in_words_or_changes_nothing(place: Place, at: float, flip: int) -> None:
    data = bytearray(whole(place))
    data[int(at * len(data))] ^= flip
    place.file.write_bytes(data)
    try:
        found = place.read()
    except DriftboxError as error:
        remedy = error.remedy
    else:  # a byte of the zip's own that nobody reads, a time of day, say
        assert found.manifest == replace(place.manifest, sha256="")
        assert torch.equal(found.state["skill"], STATE["skill"])
        remedy = "none is needed"
    assert remedy


def whole(place: Place) -> bytes:
    kept = place.file.with_suffix(".whole")
    if not kept.exists():
        kept.write_bytes(place.export().read_bytes())
    return kept.read_bytes()


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_the_private_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    os.umask(0o000)
    try:
        ring = KeyRing(tmp_path)
        public = ring.signer().public
    finally:
        os.umask(0o022)
    assert stat.S_IMODE((tmp_path / "keys" / "box.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert KeyRing(tmp_path).signer().public == public
    assert read_public(ring.public_file) == public
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_private_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    KeyRing(tmp_path).signer()
    (tmp_path / "keys" / "box.key").chmod(0o644)
    with pytest.raises(StorageError, match="can be read by others") as caught:
        KeyRing(tmp_path).signer()
    assert (caught.value.code, "chmod 600" in caught.value.remedy) == ("permissions", True)


def test_many_at_once_agree_on_one_key(tmp_path: Path) -> None:
    found: list[bytes] = []
    start = threading.Barrier(6)

    def ask() -> None:
        start.wait()
        found.append(KeyRing(tmp_path).signer().public)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 6


def of_another_kind() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (lambda: b"", "holds no public key"),
        (lambda: b"ssh-ed25519 AAAA", "holds no public key"),
        (of_another_kind, "of another kind"),
        (lambda: b"-----BEGIN PRIVATE KEY-----\n", "holds a private key"),
    ],
)
def test_a_file_without_a_usable_key_is_refused(tmp_path: Path, content: Callable[[], bytes], part: str) -> None:
    (tmp_path / "key").write_bytes(content())
    with pytest.raises(UsageError, match=part):
        KeyRing(tmp_path).trust(tmp_path / "key")
    with pytest.raises(UsageError, match="cannot be read"):
        read_public(tmp_path / "nothing")
    assert KeyRing(tmp_path).trusted() == []


def test_a_trusted_file_whose_name_was_changed_does_not_count(tmp_path: Path) -> None:
    there, here = KeyRing(tmp_path / "there"), KeyRing(tmp_path / "here")
    name = _trust(here, there)
    path = tmp_path / "here" / "keys" / "trusted" / f"{name}.pub"
    path.rename(path.with_name("0" * 32 + ".pub"))
    assert here.trusted() == []


def _trust(here: KeyRing, there: KeyRing) -> str:
    there.signer()
    return here.trust(there.public_file)


@pytest.mark.parametrize("content", [b"", b"rubbish", public_pem(bytes(31) + b"\x01")])
def test_a_damaged_own_key_is_named(tmp_path: Path, content: bytes) -> None:
    KeyRing(tmp_path).signer()
    (tmp_path / "keys" / "box.key").write_bytes(content)
    with pytest.raises(StorageError, match=r"box\.key is no key"):
        KeyRing(tmp_path).signer()


def test_a_signature_of_something_else_does_not_hold(tmp_path: Path) -> None:
    signer = KeyRing(tmp_path).signer()
    assert verify(signer.public, signer.sign(b"a"), b"a")
    assert not verify(signer.public, signer.sign(b"a"), b"b")
    assert not verify(signer.public, b"short", b"a")
    assert not verify(b"short", signer.sign(b"a"), b"a")
