"""From a clone to the first live picture: environment, start, claim, a camera; no file is edited.

    driftbox bench first_picture                     # makes an environment of its own, as `sudo make install` does: gigabytes, minutes
    driftbox bench first_picture --environment here  # with the environment that this runs in: what is left is ours
    PIP_FIND_LINKS=wheels PIP_NO_INDEX=1 driftbox bench first_picture

What `make install` does beside this (a user, a service) is written down in docs/install.md. The camera is a drawn one unless --url names
another; the claim and the camera are typed by a program (the box's own interface, which the pages use).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from edge.web.tls import own_paths
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TO_REACH_S, ANCHOR = 180.0, "Frigate: write YAML, restart"
PATIENCE_S = 300.0
PASSWORD = "seven green umbrellas"
DRAWN = "rendered:street?seed=4&fps=5"


class Steps:
    """Seconds that each step took, in order."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun_s = time.perf_counter()
        yield
        self.took_s[name] = time.perf_counter() - begun_s


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--environment", choices=("new", "here"), default="new", help="new: made as `make install` does")
    options.add_argument("--url", default=DRAWN, help="address of the camera")
    given = options.parse_args()
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="driftbox-first-") as name:
        folder = Path(name)
        clone, config = folder / "clone", folder / "clone" / "configs" / "service" / "box.yaml"
        with steps.step("git clone"):
            subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        before = _checksum(config)
        command = [sys.executable, "-m", "edge"]
        if given.environment == "new":
            with steps.step("environment"):
                _environment(clone, folder / "env")
            command = [str(folder / "env" / "bin" / "driftbox")]
        _first_picture(command, clone, config, folder / "data", given.url, steps)
        edited = before != _checksum(config)
    _print(steps, edited=edited, whole=given.environment == "new")
    return 0


def _environment(clone: Path, folder: Path) -> None:
    done = subprocess.run(
        ["sh", str(clone / "scripts" / "install_env.sh"), str(folder)], env=os.environ | {"DRIFTBOX_SPEC": str(clone)}, check=False
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(3)


def _first_picture(command: list[str], clone: Path, config: Path, data: Path, url: str, steps: Steps) -> None:
    port = free_port()
    output = data.with_name("output")
    words = [*command, "run", str(config), "--data-dir", str(data), "--port", str(port)]
    with output.open("wb") as out:
        box = subprocess.Popen(words, cwd=clone, stdout=out, stderr=out)

    def until(condition: Callable[[], Any], what: str) -> Any:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and box.poll() is None:
            if found := condition():
                return found
            time.sleep(0.05)
        sys.exit(f"not within {PATIENCE_S:.0f} s: {what}\n{output.read_text()[-3000:]}")

    try:
        with steps.step("start, until the box can be claimed"):
            code = until(lambda: re.search(r"claim code: ([0-9A-Z-]{19})", output.read_text()), "a claim code")[1]
            certificate = until(lambda: (path := own_paths(data)[0]).exists() and path, "its certificate")
            trust = ssl.create_default_context(cafile=str(certificate))
            client = httpx.Client(
                base_url=f"https://127.0.0.1:{port}/api/v1/", verify=trust, timeout=PATIENCE_S, headers={"X-Driftbox": "page"}
            )
            account = {"name": "kim", "password": PASSWORD}
            until(lambda: _status(client, "claim", account | {"code": code}) == 201, "the box can be claimed")
        with steps.step("camera, until its first picture"):
            assert _status(client, "sign-in", account) == 200
            assert _status(client, "cameras", {"id": "gate", "url": url}) == 201
            until(lambda: client.get("cameras/gate/picture.jpg").status_code == 200, "a picture")
        client.close()
        box.send_signal(signal.SIGTERM)
        box.wait(PATIENCE_S)
    finally:
        box.kill()
        box.wait()


def _status(client: httpx.Client, path: str, body: dict[str, str]) -> int:
    """0: nobody answers yet."""
    try:
        return client.post(path, json=body).status_code
    except httpx.TransportError:
        return 0


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _print(steps: Steps, *, edited: bool, whole: bool) -> None:
    for name, took_s in steps.took_s.items():
        print(f"{name:<40}{took_s:8.1f} s")
    total_s = sum(steps.took_s.values())
    mark = "reached" if total_s <= TO_REACH_S and not edited else "MISSED"
    what = "clean machine to first live picture" if whole else "the same without its environment"
    print(
        f"{mark if whole else '-':<8} {what}: {total_s:.1f} s, files edited: {'one' if edited else 'none'} "
        f"(to reach: {TO_REACH_S:.0f} s, none; anchor: {ANCHOR})"
    )
    print(f"         load of the machine over the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    sys.exit(main())
