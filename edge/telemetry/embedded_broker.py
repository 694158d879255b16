"""A broker for a box that has none: amqtt in a process of its own, `python -m edge.telemetry.embedded_broker`, so that nothing that
happens to it happens to the box. When it ends it is started again.

It listens where the configuration says, and on a port of its own on loopback for the box, with a password that is new at every start.
First line in: what to serve; nothing secret stands on the command line. First line out: {"ready": true} or {"error": ...}. When its
input ends it ends: it never outlives the box. Passwords are on disk only as argon2 hashes, in a file that only this user can read.
What it keeps (retained messages) is in memory: the box tells its own again after every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher

from configs.errors import DriftboxError, EnvironmentLacking
from configs.files import atomic_write
from configs.schema import MqttSection, Secret

log = logging.getLogger(__name__)

#: The box's own user at its own broker.
OWN_USER = "driftbox-itself"
START_S = 60.0
RESTART_MAX_S = 60.0
#: Between two looks for certificates that were made anew.
CERTIFICATES_S = 1.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class EmbeddedBroker:
    """Runs the broker until `stop`. folder: where the hashes of its passwords lie. Nothing it does keeps the box from starting: what
    goes wrong is logged, and tried again. Raises EnvironmentLacking when a user's password cannot be found."""

    def __init__(self, mqtt: MqttSection, folder: Path) -> None:
        self._mqtt, self._folder = mqtt, folder
        self._own = secrets.token_urlsafe(24)
        self._users = {user.name: user.password.resolve() for user in mqtt.embedded.users}
        if OWN_USER in self._users:
            raise EnvironmentLacking(
                f"the user {OWN_USER} of the embedded broker is the box itself", remedy="choose another name for that user"
            )
        self.own_port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._keep_up, name="mqtt-broker", daemon=True)

    def reached_by(self) -> MqttSection:
        """The configuration with which the box connects to it."""
        own = {"username": OWN_USER, "password": Secret(self._own)} if self._users else {}
        return self._mqtt.model_copy(update={"host": "127.0.0.1", "port": self.own_port, "protocol": "3.1.1", **own})

    def start(self) -> None:
        """Starts it and waits until it serves, or it is known why it does not."""
        self._begin()
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def stop(self) -> None:
        self._stopping.set()
        self._end()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self._end()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        """Starts it again whenever it has ended."""
        pause_s = 1.0
        while not self._stopping.is_set():
            process = self._process
            if process is not None:
                process.wait()
                if self._stopping.is_set():
                    return
                self._say(f"the embedded broker ended with {process.returncode}; starting it again")
                self._end()
            if self._stopping.wait(pause_s):
                return
            pause_s = 1.0 if self._begin() else min(RESTART_MAX_S, 2 * pause_s)

    def _begin(self) -> bool:
        try:
            self._write_users()
            self._spawn()
        except (DriftboxError, OSError) as error:
            self._say(f"the embedded broker cannot start: {error}")
            self._end()
            return False
        self._said = ""
        log.info("mqtt: the embedded broker listens on %s:%d", self._mqtt.embedded.listen, self._mqtt.port)
        return True

    def _write_users(self) -> None:
        if not self._users:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        hasher = PasswordHasher()
        lines = [f"{name}:{hasher.hash(word)}\n" for name, word in {**self._users, OWN_USER: self._own}.items()]
        atomic_write(self._users_file, "".join(lines).encode(), secret=True)

    @property
    def _users_file(self) -> Path:
        return self._folder / "users"

    def _orders(self) -> dict[str, Any]:
        embedded = self._mqtt.embedded
        outer: dict[str, Any] = {"bind": f"{embedded.listen}:{self._mqtt.port}", "max_connections": 1000}
        if embedded.cert_file is not None and embedded.key_file is not None:
            outer |= {"ssl": True, "certfile": str(embedded.cert_file.absolute()), "keyfile": str(embedded.key_file.absolute())}
        inner = {"bind": f"127.0.0.1:{self.own_port}", "max_connections": 10}
        return {"outer": outer, "inner": inner, "users": str(self._users_file.absolute()) if self._users else ""}

    def _spawn(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge.telemetry.embedded_broker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(self._orders()), file=process.stdin, flush=True)
        killer = threading.Timer(START_S, process.kill)
        killer.start()
        try:
            answer = json.loads(process.stdout.readline() or '{"error": "its process ended before it served"}')
        finally:
            killer.cancel()
        if "error" in answer:
            raise EnvironmentLacking(
                answer["error"], remedy="is telemetry.mqtt.port free, and are telemetry.mqtt.embedded's files right?"
            )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(3.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.warning("mqtt: %s", text)


# --- the process of its own -------------------------------------------------------------------------------------------


def broker_config(orders: Mapping[str, Any]) -> dict[str, Any]:
    """amqtt's configuration."""
    if orders.get("plugins"):  # whoever starts it brings rules of his own (a fleet's controller)
        plugins: dict[str, Any] = dict(orders["plugins"])
    elif orders["users"]:
        plugins = {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": orders["users"]}}
    else:
        plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    # `default` is what the others are made from; without a `bind` it would listen everywhere.
    return {
        "listeners": {"default": {"type": "tcp", **orders["inner"]}, "outer": {"type": "tcp", **orders["outer"]}},
        "plugins": plugins,
    }


async def serve(orders: Mapping[str, Any]) -> None:
    """Serves until the input ends."""
    from edge.telemetry.amqtt_broker import OwnBroker  # amqtt is large, and only this process wants it

    served: list[_Served] = []
    broker = OwnBroker(broker_config(orders), lambda *listener: served.append(_Served(*listener)))
    await broker.start()
    print(json.dumps({"ready": True}), flush=True)
    renewing = asyncio.create_task(_take_up_certificates(served))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    renewing.cancel()
    await broker.shutdown()


class _Served:
    """A listener's certificate, read again when its files have changed: for connections to come, those that stand go on."""

    def __init__(self, context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
        self._context, self._files = context, (cert_file, key_file)
        self._seen = self._stamps()

    def look(self) -> None:
        """Raises OSError, SSLError for files that do not belong together (yet)."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        # Not at once: a certificate without its key would leave the listener with neither.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
        self._context.load_cert_chain(*self._files)
        self._seen = stamps

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        found = [path.stat() for path in self._files]
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in found)


async def _take_up_certificates(served: Sequence[_Served]) -> None:
    while True:
        await asyncio.sleep(CERTIFICATES_S)
        for one in served:
            with contextlib.suppress(OSError):  # SSLError is one; it is looked at again
                one.look()


def main() -> int:
    logging.basicConfig(level=logging.ERROR, format="mqtt broker: %(message)s")
    logging.getLogger("amqtt").setLevel(logging.CRITICAL)  # a client that misbehaves is no news to the operator
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the box says goodbye first, and ends our input
        signal.signal(number, signal.SIG_IGN)
    try:
        asyncio.run(serve(json.loads(sys.stdin.readline())))
    except Exception as error:
        # The other side of the pipe has to learn of anything that goes wrong here, whatever it is.
        print(json.dumps({"error": f"{error}"[:300]}), flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
