"""Looking for cameras on a true network: two namespaces of this machine with a cable between them. In one of them a peer of somebody
else (the library WSDiscovery) announces a camera, in the other the box looks for it. Needs to be root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.running_box import ROOT, eventually

WITHIN_S = 120.0
ANNOUNCES = """
import sys, time
from wsdiscovery import QName, Scope
from wsdiscovery.publishing import ThreadedWSPublishing
there = ThreadedWSPublishing()
there.start()
there.publishService(
    types=[QName("http://www.onvif.org/ver10/network/wsdl", "NetworkVideoTransmitter")],
    scopes=[Scope("onvif://www.onvif.org/name/Yard%20Cam"), Scope("onvif://www.onvif.org/hardware/H1")],
    xAddrs=["http://10.77.0.2:8000/onvif/device_service"],
)
print("ready", flush=True)
time.sleep(600)
"""
LOOKS = """
import json
from edge.cameras import onvif
onvif.START_S = 90.0
print(json.dumps([camera.model_dump() for camera in onvif.Onvif().discover(seconds=3.0)]))
"""


@dataclass(frozen=True)
class Cable:
    """Two namespaces, and nothing else in them."""

    box: str
    camera: str

    def run(self, where: str, program: str) -> list[str]:
        return ["ip", "netns", "exec", where, sys.executable, "-c", program]

    def found(self) -> list[dict[str, str]]:
        """What the box finds in three seconds."""
        done = subprocess.run(self.run(self.box, LOOKS), cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=True)
        found: list[dict[str, str]] = json.loads(done.stdout)
        return found


def ip(words: str) -> bool:
    return subprocess.run(["ip", *words.split()], capture_output=True, check=False).returncode == 0


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    made = Cable(f"dbox{os.getpid()}", f"dcam{os.getpid()}")
    try:
        if not (ip(f"netns add {made.box}") and ip(f"netns add {made.camera}")):
            pytest.skip("this machine lends no network namespaces")
        assert ip(f"link add eth9 netns {made.box} type veth peer name eth9 netns {made.camera}")
        for name, number in ((made.box, 1), (made.camera, 2)):
            assert ip(f"-n {name} addr add 10.77.0.{number}/24 dev eth9")
            assert ip(f"-n {name} link set eth9 up")
            assert ip(f"-n {name} link set lo up")
            assert ip(f"-n {name} route add 224.0.0.0/4 dev eth9")
        yield made
    finally:
        for name in (made.box, made.camera):
            ip(f"netns del {name}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_camera_of_somebody_else_is_found_on_the_network(cable: Cable) -> None:
    assert cable.found() == [], "nobody is there yet"
    peer = subprocess.Popen(cable.run(cable.camera, ANNOUNCES), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "ready\n"
        # Who does not answer within these seconds is not found: on a busy machine a person would press the button again.
        [camera] = eventually(cable.found, "the camera is found", WITHIN_S)
        assert (camera["address"], camera["name"], camera["hardware"]) == ("10.77.0.2:8000", "Yard Cam", "H1")
    finally:
        peer.kill()
        peer.wait()
