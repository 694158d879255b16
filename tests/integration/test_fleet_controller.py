"""A controller as it is served: HTTPS with certificates, a real mosquitto, its own broker, boxes behind paho."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from paho.mqtt.enums import CallbackAPIVersion

from cluster.controller.lease import LeaseTimes
from cluster.controller.round import RoundRules
from cluster.controller.serve import FleetFolder, RunningController, ServeOptions
from cluster.placement.plan import FleetRules
from cluster.types import Customer
from configs.schema import MqttSection
from edge.clock import SystemClock
from scheduler.videostorm.placement import PlacementRules
from tests.support.fleet_boxes import ToyBox, WireBox
from tests.support.mosquitto import Broker, Listener, eventually, require_mosquitto
from tests.support.ports import free_port

pytestmark = [pytest.mark.mqtt, pytest.mark.slow]

#: As in docs/fleet/controller.md.
ACL = """user fleet
topic readwrite driftbox/#

pattern readwrite driftbox/+/%u/#
pattern read driftbox/fleet/controller
"""
#: No moves by themselves; shares at once.
RULES = RoundRules(feedback_s=1.0, placement=FleetRules(standby=False, scores=PlacementRules(balanced="share_pct", moves=0)))
#: Long enough that nobody is out of charge because other tests run beside; no test waits until it has run out.
LEASE = LeaseTimes(renew_s=0.5, rival_s=20.0)
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    require_mosquitto()
    made = Broker(tmp_path_factory.mktemp("mosquitto"))
    made.start()
    yield made
    made.stop()


def options(data_dir: Path, broker: Broker | None, **more: Any) -> ServeOptions:
    given = None
    if broker is not None:
        given = MqttSection.model_validate(
            {"enabled": True, "host": "127.0.0.1", "port": broker.port, "prefix": more.pop("prefix", "driftbox")}
        )
    return ServeOptions(
        data_dir=data_dir,
        host="127.0.0.1",
        port=0,
        names=("127.0.0.1",),
        broker=given,
        rules=RULES,
        lease_times=LEASE,
        login=False,
        **more,
    )


class Served:
    """A controller that runs."""

    def __init__(self, wanted: ServeOptions) -> None:
        self.said: list[str] = []
        self.running = RunningController(wanted, say=self.said.append)
        self.running.start()

    @property
    def url(self) -> str:
        return self.running.url

    def in_charge(self) -> bool:
        status = self.running.controller.status()
        return status.in_charge and status.broker_up


@pytest.fixture
def served(tmp_path: Path, broker: Broker) -> Iterator[Served]:
    made = Served(options(tmp_path / "fleet", broker, prefix=f"p{time.monotonic_ns()}"))
    eventually(made.in_charge, "the controller is in charge")
    yield made
    made.running.stop()


class Joiner:
    """A box on its way into the fleet: its key, and what the controller answered."""

    def __init__(self, folder: Path, url: str, box: str, site: str = "here") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.url, self.box, self.site = folder, url, box, site
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.cert_file, self.key_file = folder / f"{box}.crt", folder / f"{box}.key"
        self.key_file.write_bytes(
            self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        self.answer: dict[str, Any] = {}

    def csr(self) -> str:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "whatever it says")])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def ca(self) -> str:
        return httpx.get(f"{self.url}/fleet/v1/ca", verify=False, timeout=PATIENCE_S).text

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.ca())

    def join(self, code: str, **more: Any) -> httpx.Response:
        body = {"schema": 1, "code": code, "box": self.box, "site": self.site, "csr": self.csr(), "capacity_pct": 100.0} | more
        got = httpx.post(f"{self.url}/fleet/v1/join", json=body, verify=self.trusting(), timeout=PATIENCE_S)
        if got.status_code == 200:
            self.answer = got.json()
            self.take(self.answer["certificate"])
        return got

    def take(self, certificate: str) -> None:
        self.cert_file.write_text(certificate)

    def tls(self) -> ssl.SSLContext:
        context = self.trusting()
        context.load_cert_chain(self.cert_file, self.key_file)
        return context

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, f"{self.url}/fleet/v1/{path}", verify=self.tls(), timeout=PATIENCE_S, **more)


def refusal(got: httpx.Response) -> tuple[int, str]:
    return got.status_code, got.json()["error"]["code"]


def joined(served: Served, folder: Path, box: str) -> Joiner:
    made = Joiner(folder, served.url, box)
    code = served.running.services.actions.invite(by="t").code
    assert made.join(code).status_code == 200
    eventually(lambda: box in served.running.controller.state().boxes, f"{box} is a member")
    return made


# --- joining ----------------------------------------------------------------------------------------------------------


def test_a_box_joins_renews_and_leaves(served: Served, tmp_path: Path) -> None:
    actions = served.running.services.actions
    box, code = Joiner(tmp_path, served.url, "gate"), actions.invite(by="t").code
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(box.ca())).hexdigest()
    assert code.partition(".")[2] == fingerprint[:32], "by the code's second part a box knows its controller"
    assert box.join(code).status_code == 200
    assert box.answer["broker"]["port"] == served.running.options.broker.port  # type: ignore[union-attr]
    certificate = x509.load_pem_x509_certificate(box.answer["certificate"].encode())
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "gate", "our words, not its own"
    assert box.join(code).status_code == 200, "an answer can get lost"
    thief = Joiner(tmp_path / "thief", served.url, "gate")
    assert refusal(thief.join(code)) == (403, "code_used")
    assert refusal(thief.join(actions.invite(by="t").code)) == (409, "id_taken")
    assert refusal(thief.join("AAAA-AAAA-AAAA-AAAA")) == (403, "code_unknown")
    assert refusal(thief.join(actions.invite(by="t").code, csr="no request")) == (400, "csr")
    assert refusal(thief.join(actions.invite(by="t", box="other").code)) == (403, "code_unknown")

    renewed = box.ask("POST", "renew", json={"csr": box.csr()})
    assert renewed.status_code == 200
    old = Joiner(tmp_path / "old", served.url, "gate")
    old.key_file.write_bytes(box.key_file.read_bytes())
    old.take(box.answer["certificate"])
    assert old.ask("GET", "boxes/fleet/certificate").status_code == 200, "the old one is good until the new one is in force"
    box.take(renewed.json()["certificate"])
    assert box.ask("GET", "boxes/gate/certificate").text == renewed.json()["certificate"]

    assert box.ask("POST", "leave", json={}).status_code == 200
    assert refusal(box.ask("GET", "boxes/gate/certificate")) == (401, "certificate_revoked")
    eventually(lambda: "gate" not in served.running.controller.state().boxes, "the controller knows")
    late = actions.invite(by="t")
    with served.running.folder.db.transaction() as db:
        db.execute("UPDATE invites SET expires_utc = ? WHERE ref = ?", (time.time() - 1.0, late.ref))
    assert refusal(thief.join(late.code)) == (403, "code_expired")
    assert thief.join(actions.invite(by="t").code).status_code == 200, "the id is free again"


def test_wrong_codes_slow_down_and_guesses_are_counted(served: Served, tmp_path: Path) -> None:
    box = Joiner(tmp_path, served.url, "gate")
    tls, csr = box.trusting(), box.csr()
    codes = []
    for _ in range(12):
        body = {"code": "AAAA-AAAA-AAAA-AAAA", "box": "gate", "site": "here", "csr": csr, "capacity_pct": 100.0}
        codes.append(refusal(httpx.post(f"{served.url}/fleet/v1/join", json=body, verify=tls, timeout=PATIENCE_S))[1])
    assert codes[0] == "code_unknown"
    assert codes[-1] == "too_many"


def test_certificates_missing_expired_revoked_or_foreign_open_nothing(served: Served, tmp_path: Path) -> None:
    folder = served.running.folder
    nobody = Joiner(tmp_path, served.url, "gate")
    got = httpx.get(f"{served.url}/fleet/v1/boxes/gate/certificate", verify=nobody.trusting(), timeout=PATIENCE_S)
    assert refusal(got) == (401, "certificate_missing")

    box = joined(served, tmp_path / "box", "gate")
    now_s = time.time()
    old = folder.authority.sign(box.csr(), "gate", now_utc_s=now_s - 200 * 86_400.0)
    with folder.db.transaction() as db:
        db.execute("INSERT INTO certificates VALUES (?, 'gate', ?, '')", (old.fingerprint, old.until_utc_s))
    box.take(old.pem)
    expired = box.ask("GET", "boxes/gate/certificate")
    assert refusal(expired) == (401, "certificate_expired")
    assert "expired at 20" in expired.json()["error"]["message"]
    assert "join again" in expired.json()["error"]["remedy"]

    box.take(box.answer["certificate"])
    assert box.ask("GET", "boxes/gate/certificate").status_code == 200
    served.running.services.actions.revoke("gate", by="t", reason="stolen")
    revoked = box.ask("GET", "boxes/gate/certificate")
    assert refusal(revoked) == (401, "certificate_revoked")
    assert "stolen" in revoked.json()["error"]["message"]

    from cluster.controller.authority import Authority

    foreign = Authority(tmp_path / "foreign", now_utc_s=now_s)
    box.take(foreign.sign(box.csr(), "gate", now_utc_s=now_s).pem)
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        box.ask("GET", "boxes/gate/certificate")


def test_parcels_go_to_their_addressee_only_whole_and_from_where_they_broke_off(served: Served, tmp_path: Path) -> None:
    one, two = joined(served, tmp_path / "1", "one"), joined(served, tmp_path / "2", "two")
    body = bytes(range(256)) * 8000
    digest = hashlib.sha256(body).hexdigest()
    assert refusal(one.ask("PUT", "parcels/two.one.c1.4", content=body, headers={"X-Sha256": "0" * 64})) == (422, "checksum")
    assert refusal(two.ask("GET", "parcels/two.one.c1.4")) == (404, "not_found"), "of a damaged one nothing is left"
    put = one.ask("PUT", "parcels/two.one.c1.4", content=body, headers={"X-Sha256": digest})
    assert put.json()["size_bytes"] == len(body)
    assert one.ask("PUT", "parcels/two.one.c1.4", content=body, headers={"X-Sha256": digest}).status_code == 200
    eventually(lambda: "two.one.c1.4" in served.running.controller.state().parcels, "the controller knows of it")
    assert refusal(one.ask("GET", "parcels/two.one.c1.4")) == (403, "not_addressee")
    got = two.ask("GET", "parcels/two.one.c1.4")
    assert (got.content, got.headers["x-sha256"]) == (body, digest)
    rest = two.ask("GET", "parcels/two.one.c1.4", headers={"Range": "bytes=1000000-"})
    assert (rest.status_code, rest.content) == (206, body[1_000_000:])
    assert refusal(one.ask("PUT", "parcels/stranger.x", content=b"x", headers={"X-Sha256": digest})) == (404, "not_found")
    assert two.ask("GET", "parcels/..%2f..%2ffleet.db").status_code == 404
    assert two.ask("DELETE", "parcels/two.one.c1.4").status_code == 200
    assert refusal(two.ask("GET", "parcels/two.one.c1.4")) == (404, "not_found")
    fleet = one.ask("PUT", "parcels/fleet.samples.1", content=b"abc", headers={"X-Sha256": hashlib.sha256(b"abc").hexdigest()})
    assert fleet.status_code == 200
    assert served.running.services.actions.find_parcel("fleet.samples.1").path.read_bytes() == b"abc"


# --- a fleet at a real broker -----------------------------------------------------------------------------------------


def wire(served: Served, broker: Broker, box: ToyBox) -> WireBox:
    with served.running.folder.db.transaction() as db:
        from cluster.controller.events import BoxJoined
        from cluster.controller.inbox import put

        event = BoxJoined(box=box.id, site=box.site, at_utc_s=time.time(), capacity_pct=box.capacity_pct)
        put(db, event, at_utc_s=time.time())
    prefix = served.running.options.broker.prefix  # type: ignore[union-attr]
    return WireBox(box, broker.port, now_s=time.time, prefix=prefix)


def every_box_has(served: Served, boxes: list[WireBox]) -> bool:
    """Each reports once more, and has the newest wish in force."""
    for one in boxes:
        one.report()
    told = served.running.controller._kept.told
    return all(b.box.applied is not None and b.box.id in told and b.box.applied.order == told[b.box.id].order for b in boxes)


def watchers(boxes: list[WireBox]) -> dict[str, list[str]]:
    keys = {key for one in boxes for key in one.box.watched()}
    return {str(key): [one.box.id for one in boxes if key in one.box.watched()] for key in sorted(keys)}


def test_shares_a_drained_box_a_broker_that_forgets_and_a_restart(served: Served, broker: Broker, tmp_path: Path) -> None:
    boxes = [
        wire(served, broker, ToyBox("a", cameras={"c1": ("x", 30.0)})), wire(served, broker, ToyBox("b", cameras={"c1": ("y", 30.0)})),
        wire(served, broker, ToyBox("c", capacity_pct=200.0)),
    ]  # fmt: skip
    restarted: Served | None = None
    try:
        for one in boxes:
            one.box.pack = lambda parcel: served.running.folder.parcels.put(parcel, b"sealed", "a")  # type: ignore[assignment,return-value]
        served.running.services.actions.put_customer(Customer(id="x", goal=0.7), by="t")
        eventually(lambda: every_box_has(served, boxes) and boxes[0].box.applied.shares, "shares are in force")  # type: ignore[union-attr]

        served.running.services.actions.drain("a", True, by="t")
        moved = lambda: every_box_has(served, boxes) and watchers(boxes) == {"a/c1": ["c"], "b/c1": ["b"]}  # noqa: E731
        eventually(moved, "the camera is watched elsewhere, each by one box")
        phases = [row.phase for row in served.running.services.history.placements() if row.camera.home == "a"]
        assert phases == ["done", "release", "switch", "warm", "prepare"][-len(phases) :]

        listener = Listener(broker.port)
        prefix = served.running.options.broker.prefix  # type: ignore[union-attr]
        listener.publish(f"{prefix}/here/a/desired", b"", retain=True)
        eventually(lambda: [p for p in listener.of("/a/desired") if p], "what was lost at the broker is told again")
        listener.close()

        first = served.running.controller.status().term
        kept = served.running.options
        served.running.stop()
        restarted = Served(kept)
        eventually(restarted.in_charge, "the next one is in charge")
        assert restarted.running.controller.status().term > first
        eventually(lambda: every_box_has(restarted, boxes), "and everybody obeys it")
        assert restarted.running.controller.state().boxes["a"].draining
        assert watchers(boxes) == {"a/c1": ["c"], "b/c1": ["b"]}
    finally:
        for one in boxes:
            one.close()
        if restarted is not None:
            restarted.running.stop()


def test_a_replayed_report_and_a_second_box_at_a_real_broker(served: Served, broker: Broker) -> None:
    box = wire(served, broker, ToyBox("a", cameras={"c1": ("x", 30.0)}))
    twin = WireBox(
        ToyBox("a", cameras={"c1": ("x", 90.0)}, boot="boot-2", sequence=2), broker.port, now_s=time.time,
        prefix=served.running.options.broker.prefix,  # type: ignore[union-attr]
    )  # fmt: skip
    try:
        state = served.running.controller.state
        eventually(lambda: box.report() and state().boxes.get("a") and state().boxes["a"].report, "it is heard")
        old = box.report()
        box.report()
        box.say(old)
        box.say(old.replace(b'"quality":0.9', b'"quality":0.1'))
        eventually(lambda: any("old message" in doubt for doubt in state().boxes["a"].doubts), "the replay is told")
        assert state().boxes["a"].cameras[0].quality == 0.9
        eventually(
            lambda: (box.report(), twin.report()) and any("two boxes" in d for d in state().boxes["a"].doubts),
            "the twin is told",
        )
    finally:
        box.close()
        twin.close()


def stays(so: Callable[[], bool], for_s: float) -> bool:
    """Whether it is so, all the time from now."""
    end_s = time.monotonic() + for_s
    while so():
        if time.monotonic() > end_s:
            return True
        time.sleep(0.05)
    return False


def test_two_controllers_at_one_broker_on_copies_of_a_folder(served: Served, broker: Broker, tmp_path: Path) -> None:
    prefix = served.running.options.broker.prefix  # type: ignore[union-attr]
    other = Served(options(tmp_path / "other", broker, prefix=prefix))
    try:
        both = [served.running.controller, other.running.controller]
        eventually(lambda: any("writes by term" in c.status().reason for c in both), "one of them has heard of the other")
        # Who finds only a kept word of the other cannot know that it lives, and takes a higher term: both may believe for a moment
        # that they are in charge (boxes obey the higher term), and then one yields for good.
        eventually(lambda: stays(lambda: sum(c.status().in_charge for c in both) == 1, 2.0), "one of them steps down for good")
        reasons = [c.status().reason for c in both if not c.status().in_charge]
        assert any("writes by term" in reason for reason in reasons)
    finally:
        other.running.stop()


def test_the_broker_goes_and_comes_back(tmp_path: Path) -> None:
    require_mosquitto()
    own = Broker(tmp_path)
    own.start()
    served = Served(options(tmp_path / "fleet", own))
    try:
        eventually(served.in_charge, "in charge")
        box = wire(served, own, ToyBox("a", cameras={"c1": ("x", 30.0)}))
        eventually(lambda: every_box_has(served, [box]), "the box obeys")
        own.stop()
        eventually(lambda: not served.running.controller.status().broker_up, "it is noticed")
        eventually(lambda: "broker is away" in served.running.controller.status().reason, "and told")
        assert box.box.watched(), "the box goes on"
        own.start()
        listener = Listener(own.port)
        eventually(lambda: listener.of("/a/desired"), "everything is told again")
        eventually(lambda: listener.of("fleet/controller"), "with its heartbeat")
        assert json.loads(listener.of("fleet/controller")[-1])["term"] == served.running.controller.status().term
        listener.close()
        box.close()
    finally:
        served.running.stop()
        own.stop()


def test_a_given_broker_that_knows_everybody_by_certificate(tmp_path: Path) -> None:
    """As docs/fleet/controller.md says: mosquitto with the fleet's authority and an ACL by the certificate's name."""
    require_mosquitto()
    from cluster.controller.authority import Authority

    authority = Authority(tmp_path / "fleet" / "ca", now_utc_s=time.time())
    authority.server(["127.0.0.1", "localhost"], now_utc_s=time.time())
    acl = tmp_path / "acl"
    acl.write_text(
        "user fleet\ntopic readwrite driftbox/#\n\npattern readwrite driftbox/+/%u/#\npattern read driftbox/fleet/controller\n"
    )
    lines = [
        f"cafile {authority.cert_file}", f"certfile {authority.server_cert_file}", f"keyfile {authority.server_key_file}",
        "require_certificate true", "use_identity_as_username true", f"acl_file {acl}", "allow_anonymous false",
        "use_username_as_clientid true",
    ]  # fmt: skip
    own = Broker(tmp_path, lines=lines)
    own.start()
    wanted = options(tmp_path / "fleet", own)
    served = Served(replace(wanted, broker=wanted.broker.model_copy(update={"tls": True})))  # type: ignore[union-attr]
    try:
        eventually(served.in_charge, "in charge")
        gate, hall = joined(served, tmp_path / "gate", "gate"), joined(served, tmp_path / "hall", "hall")
        box = WireBox(ToyBox("gate", cameras={"c1": ("x", 30.0)}), own.port, now_s=time.time, tls=gate.tls())
        ear = Listener(own.port, tls=hall.tls())
        state = served.running.controller.state
        eventually(
            lambda: box.report() and box.box.applied is not None and state().boxes["gate"].report, "it is heard and obeys"
        )
        assert not ear.of("gate/desired")
        ends: list[object] = []
        box.client.on_disconnect = lambda *_: ends.append(1)
        yard, made = joined(served, tmp_path / "yard", "yard"), served.running.link.connection()
        for id in ("gate", "fleet", box.client._client_id.decode()):
            thief = Client(id, own.port, yard.tls())
            assert thief.is_in
            thief.close()
        version = state().boxes["gate"].report.sequence  # type: ignore[union-attr]
        eventually(lambda: box.report() and state().boxes["gate"].report.sequence > version, "it is still heard")  # type: ignore[union-attr]
        assert not ends, "by the connection that it had, whatever another calls itself"
        assert served.running.link.connection() == made
        box.close()
        ear.close()
    finally:
        served.running.stop()
        own.stop()


# --- its own broker ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A controller with its own broker, for several tests."""
    made = Served(options(tmp_path_factory.mktemp("own") / "fleet", None, broker_port=free_port()))
    eventually(made.in_charge, "in charge")
    yield made
    made.running.stop()


class Client:
    """A paho client that notes what becomes of its connection."""

    def __init__(self, id: str, port: int, tls: ssl.SSLContext, *, clean: bool = True, will: str = "") -> None:
        self.answers: list[str] = []
        self.ends = 0
        self.heard: list[tuple[str, bytes]] = []
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id=id, clean_session=clean, reconnect_on_failure=False)
        self.paho.tls_set_context(tls)
        self.paho.on_connect = lambda _, __, ___, reason, ____: self.answers.append(str(reason))
        self.paho.on_disconnect = lambda *_: setattr(self, "ends", self.ends + 1)
        self.paho.on_message = lambda _, __, message: self.heard.append((message.topic, message.payload))
        if will:
            self.paho.will_set(will, b"{}", qos=1, retain=True)
        self.paho.connect_async("127.0.0.1", port)
        self.paho.loop_start()
        eventually(lambda: self.answers or self.ends, "an answer")

    @property
    def is_in(self) -> bool:
        return self.answers == ["Success"]

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def test_who_is_sent_away_loses_his_connection_at_once(own: Served, tmp_path: Path) -> None:
    port, state = own.running.options.broker_port, own.running.controller.state
    boxes = {name: joined(own, tmp_path / name, name) for name in ("north", "south", "west")}
    wires = {name: WireBox(ToyBox(name), port, now_s=time.time, tls=box.tls()) for name, box in boxes.items()}
    online = lambda name: name in state().boxes and state().boxes[name].online  # noqa: E731
    eventually(lambda: all(wire.report() and online(name) for name, wire in wires.items()), "all are there")
    for name in ("north", "south"):  # else it goes on trying, which is its right
        wires[name].client._reconnect_on_failure = False

    beside = FleetFolder(own.running.options.data_dir, SystemClock(), beside=True)  # as a command does it
    beside.actions().revoke("north", by="t", reason="stolen")
    beside.close()
    eventually(lambda: not wires["north"].client.is_connected(), "the revoked one is out")
    eventually(lambda: not online("north"), "its will is told: its cameras can be taken over")
    assert not Client("again", port, boxes["north"].tls()).is_in

    own.running.services.actions.forget("south", by="t")
    eventually(lambda: not wires["south"].client.is_connected(), "who is no member is out")
    assert wires["west"].client.is_connected(), "and nobody else"
    own.running.services.actions.drain("west", True, by="t")
    eventually(lambda: state().boxes["west"].draining, "one that is to be emptied")
    assert wires["west"].client.is_connected(), "has to hear how"
    for wire in wires.values():
        wire.close()


def test_nobody_speaks_for_another_by_his_client_id_or_a_will(own: Served, tmp_path: Path) -> None:
    """By a client id that somebody else has, or had: of a member, of nobody, kept or not."""
    port, controller = own.running.options.broker_port, own.running.link._client_id
    one, other = joined(own, tmp_path / "one", "one"), joined(own, tmp_path / "other", "other")
    ear = Client("known", port, one.tls(), clean=False)
    listens = threading.Event()
    ear.paho.on_subscribe = lambda *_: listens.set()
    ear.paho.subscribe("driftbox/here/one/numbers", qos=1)
    assert listens.wait(60)
    made = own.running.link.connection()
    for id in ("known", controller):
        for clean in (True, False):
            thief, nobody = Client(id, port, other.tls(), clean=clean), Client(id, port, one.trusting(), clean=clean)
            assert thief.is_in, "it may call itself as it likes"
            assert not nobody.is_in, "without a certificate nobody comes in"
            thief.close()
            nobody.close()
    mouth = Client("mouth", port, one.tls())
    mouth.paho.publish("driftbox/here/one/numbers", b"1", qos=1).wait_for_publish(60)
    eventually(lambda: ear.heard == [("driftbox/here/one/numbers", b"1")], "its owner still has what he asked for")
    assert ear.ends == 0, "by the connection that he had"
    assert thief.heard == nobody.heard == []
    box = WireBox(ToyBox("one"), port, now_s=time.time, tls=one.tls())
    eventually(lambda: box.report() and own.running.controller.state().boxes["one"].online, "and the controller hears")
    assert own.running.link.connection() == made, "which has lost nothing either"

    ear.close()
    mouth.paho.publish("driftbox/here/one/numbers", b"2", qos=1).wait_for_publish(60)
    thief = Client("known", port, other.tls(), clean=False)
    back = Client("known", port, one.tls(), clean=False)
    eventually(lambda: back.heard == [("driftbox/here/one/numbers", b"2")], "what was kept for it comes to its owner")
    assert thief.heard == []
    for topic, let_in in (("driftbox/here/one/availability", False), ("driftbox/here/other/availability", True)):
        teller = Client(f"w-{let_in}", port, other.tls(), will=topic)
        assert teller.is_in is let_in
        teller.close()
    for client in (thief, back, mouth):
        client.close()
    box.close()


def test_a_renewed_certificate_is_served_at_once_and_nothing_is_lost(own: Served, tmp_path: Path) -> None:
    running, port = own.running, own.running.options.broker_port
    box = joined(own, tmp_path / "box", "east")

    def serial() -> int:
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            box.trusting().wrap_socket(raw, server_hostname="127.0.0.1") as tls,
        ):
            return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"").serial_number

    ear, mouth = Client("ear", port, box.tls()), Client("mouth", port, box.tls())
    listens = threading.Event()
    ear.paho.on_subscribe = lambda *_: listens.set()
    ear.paho.subscribe("driftbox/here/east/numbers", qos=1)
    assert listens.wait(60)
    before = serial()
    running._names = (*running._names, "fleet.example.org")
    told = 0

    def tell() -> None:
        nonlocal told
        mouth.paho.publish("driftbox/here/east/numbers", str(told).encode(), qos=1).wait_for_publish(60)
        told += 1

    tell()
    running._sweep()

    def is_new() -> bool:
        tell()
        return serial() != before

    eventually(is_new, "new connections meet the new certificate")
    assert serial() == x509.load_pem_x509_certificate(running.folder.authority.server_cert_file.read_bytes()).serial_number
    tell()
    eventually(lambda: len(ear.heard) == told, "all of it is heard")
    assert [int(body) for _, body in ear.heard] == list(range(told)), "once, and in order"
    assert (ear.ends, mouth.ends) == (0, 0), "by connections that stood all the time"
    for client in (ear, mouth):
        client.close()


def test_the_own_broker_knows_boxes_by_their_certificates(tmp_path: Path) -> None:
    port = free_port()
    served = Served(options(tmp_path / "fleet", None, broker_port=port))
    try:
        eventually(served.in_charge, "in charge")
        gate = joined(served, tmp_path / "gate", "gate")
        assert gate.answer["broker"] == {"host": "127.0.0.1", "port": port, "tls": True}
        hall = joined(served, tmp_path / "hall", "hall")
        ear = Listener(port, tls=hall.tls())
        box = WireBox(ToyBox("gate", cameras={"c1": ("x", 30.0)}), port, now_s=time.time, tls=gate.tls())
        state = served.running.controller.state
        eventually(
            lambda: box.report() and box.box.applied is not None and state().boxes["gate"].report, "it is heard and obeys"
        )

        spoof = ToyBox("gate", cameras={"c1": ("x", 99.0)}, boot="spoof", sequence=10_000)
        from scheduler.fleet.codec import encode

        ear.publish("driftbox/here/gate/report", encode(replace(spoof.report(time.time()))))
        ear.publish("driftbox/here/hall/report", encode(ToyBox("hall").report(time.time())))
        eventually(lambda: state().boxes["hall"].report, "hall speaks for itself")
        assert state().boxes["gate"].report.boot == "boot-1", "and not for others"  # type: ignore[union-attr]
        assert not ear.of("gate/desired"), "nor does it hear what others are told"

        served.running.services.actions.revoke("gate", by="t")
        eventually(lambda: gate.ask("GET", "boxes/hall/certificate").status_code == 401, "its certificate is worth nothing")
        eventually(lambda: "gate" in served.running._blocked, "and it is not heard any more")
        box.close()
        ear.close()
    finally:
        served.running.stop()
