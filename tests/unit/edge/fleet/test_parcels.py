"""A camera in a parcel, and the controller's shelf over HTTPS."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import EnvironmentLacking, UsageError
from edge.fleet.parcels import CAMERA_FILE, CameraParcel, HttpsPost, addressee, packed, unpacked
from scheduler.fleet.types import CameraKey

GATE = CameraKey(home="a", camera="gate")


@given(name=st.text(max_size=20), model=st.binary(max_size=200), quality=st.none() | st.floats(0, 1))
def test_what_was_packed_comes_out(name: str, model: bytes, quality: float | None) -> None:
    parcel = CameraParcel(camera=GATE, document={"url": "rtsp://h/x", "name": name}, model=model, known={"quality": quality})
    assert unpacked(packed(parcel), GATE) == parcel
    assert packed(parcel) == packed(parcel)


def _zip(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in files.items():
            file.writestr(name.replace("_json", ".json"), data)
    return out.getvalue()


HEAD = {"schema": 1, "camera": "a/gate", "entry": {}, "known": {}}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"no zip", _zip(other=b"x"), _zip(camera_json=b"{"), _zip(camera_json=b"[]"), _zip(camera_json=b"{}"),
        _zip(camera_json=json.dumps(HEAD | {"schema": 2}).encode()), _zip(camera_json=json.dumps(HEAD | {"camera": "a/b"}).encode()),
        _zip(camera_json=json.dumps(HEAD | {"entry": []}).encode()), _zip(camera_json=json.dumps(HEAD).encode(), evil=b"x"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        unpacked(data, GATE)


def test_a_zip_that_grows_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(CAMERA_FILE, b" " * 2**20)
    with pytest.raises(UsageError, match="too large"):
        unpacked(out.getvalue(), GATE)


def test_a_parcels_name_says_for_whom_it_is() -> None:
    assert (addressee("b.a.gate.1"), addressee("")) == ("b", "")


class Shelf:
    """What a controller answers."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.status, self.damages = 0, False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if self.status:
            return httpx.Response(
                self.status, json={"error": {"code": "c", "message": "it says no", "subject": "", "remedy": ""}}
            )
        if request.method == "PUT":
            assert request.headers["X-Sha256"] == hashlib.sha256(request.content).hexdigest()
            self.kept[name] = request.content
            return httpx.Response(200, json={})
        if request.url.path.endswith("/certificate"):
            return httpx.Response(200, content=b"PEM of " + request.url.path.split("/")[4].encode())
        if name not in self.kept:
            return httpx.Response(404, json={"error": {"code": "not_found", "message": "no such parcel"}})
        content = self.kept[name]
        return httpx.Response(
            200, content=content[:-1] if self.damages else content, headers={"X-Sha256": hashlib.sha256(content).hexdigest()}
        )


def test_parcels_go_to_the_controller_and_come_back() -> None:
    shelf = Shelf()
    post = HttpsPost(httpx.Client(transport=httpx.MockTransport(shelf), base_url="https://c"))
    post.put("b.a.gate.1", b"sealed")
    assert post.get("b.a.gate.1") == b"sealed"
    assert post.certificate_of("b") == b"PEM of b"
    shelf.damages = True
    with pytest.raises(EnvironmentLacking, match="damaged"):
        post.get("b.a.gate.1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, EnvironmentLacking), (503, EnvironmentLacking), (429, EnvironmentLacking), (403, UsageError), (410, UsageError)],
)
def test_a_refusal_says_whether_it_is_worth_trying_again(status: int, kind: type[Exception]) -> None:
    shelf = Shelf()
    shelf.status = status
    with pytest.raises(kind, match="it says no"):
        HttpsPost(httpx.Client(transport=httpx.MockTransport(shelf), base_url="https://c")).get("b.a.gate.1")


def test_a_controller_that_is_away_is_tried_again() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("secret words")

    with pytest.raises(EnvironmentLacking) as raised:
        HttpsPost(httpx.Client(transport=httpx.MockTransport(away), base_url="https://c")).get("p")
    assert "secret" not in str(raised.value)
