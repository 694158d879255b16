"""The RTSP server as a process of its own: `python -m streams.rtsp_process`, driven over its standard input.

First line in: {"host": ..., "port": ..., "user": ..., "password": ..., "mounts": [...]}; nothing secret stands on the command
line. First line out: {"port": ...} or {"error": ..., "remedy": ...}. After that each line in is one order,
{"do": "hang" | "resume" | "disconnect", "name": ...} or {"do": "kill" | "start"}, answered by one line. When the input
ends the process ends: it never outlives the box, not even one killed with -9.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from configs.errors import DriftboxError, EnvironmentLacking
from streams.rtsp_server import RtspServer, address


@dataclass(frozen=True, kw_only=True)
class MountSpec:
    """One mount, as plain data: either `file`, or `factory` = 'module:function'.

    The factory is called as function(**arguments) in the server's process and gives the callable
    index -> uint8 (height_px, width_px, 3) RGB whose pictures are shown at `fps`.
    """

    name: str
    file: str = ""
    loop: bool = True
    factory: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    fps: float = 10.0
    width_px: int = 640
    height_px: int = 360
    keyframe_s: float = 1.0

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.factory):
            raise ValueError(f"mount {self.name!r} needs either a file or a factory")


class RtspServerProcess:
    """An `RtspServer` in a process of its own. Every method may be called from any thread, one at a time."""

    def __init__(
        self,
        mounts: Sequence[MountSpec],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        user: str = "",
        password: str = "",
        auth: str = "digest",
    ) -> None:
        self._mounts = tuple(mounts)
        self._settings = {"host": host, "port": port, "user": user, "password": password, "auth": auth}
        self._process: subprocess.Popen[str] | None = None
        self.host = host
        self.port = port

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Starts the process and waits until it serves. Raises EnvironmentLacking when it cannot."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streams.rtsp_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        order = self._settings | {"port": self.port, "mounts": [asdict(mount) for mount in self._mounts]}
        try:
            self.port = int(self._ask(order, timeout_s=timeout_s)["port"])
        except DriftboxError:
            self.stop()
            raise

    @property
    def pid(self) -> int | None:
        """The process's id, or None while there is none."""
        return self._process.pid if self._process else None

    def url(self, name: str, *, user: str = "", password: str = "") -> str:
        """The address of a mount, as `RtspServer.url`. Raises KeyError for an unknown mount."""
        if name not in {mount.name for mount in self._mounts}:
            raise KeyError(name)
        return address(self.host, self.port, name, user=user, password=password)

    def hang(self, name: str) -> None:
        self._ask({"do": "hang", "name": name})

    def resume(self, name: str) -> None:
        self._ask({"do": "resume", "name": name})

    def disconnect(self, name: str) -> None:
        self._ask({"do": "disconnect", "name": name})

    def kill(self) -> None:
        """Cuts every connection and stops listening, as when the cameras lose power; `restart` brings them back."""
        self._ask({"do": "kill"})

    def restart(self) -> None:
        self._ask({"do": "start"})

    def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _ask(self, order: dict[str, Any], *, timeout_s: float = 10.0) -> dict[str, Any]:
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise EnvironmentLacking("the RTSP server's process is not running", remedy="start it first")
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise EnvironmentLacking("the RTSP server's process ended", remedy="look for its message above") from None
        answer = json.loads(_line(self._process.stdout, timeout_s) or '{"error": "the RTSP server\'s process does not answer"}')
        if "error" in answer:
            raise EnvironmentLacking(answer["error"], remedy=answer.get("remedy", ""), code=answer.get("code", ""))
        return dict(answer)


def _line(stream: IO[str], timeout_s: float) -> str:
    """One line of a pipe that gets one line at a time, or "" when none came in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(timeout_s) else ""


def _frames(mount: MountSpec) -> Callable[[int], Any]:
    module, _, function = mount.factory.partition(":")
    return getattr(importlib.import_module(module), function)(**mount.arguments)


def build(settings: dict[str, Any]) -> RtspServer:
    """The server that the first line of input describes, not yet started."""
    mounts = [MountSpec(**mount) for mount in settings.pop("mounts")]
    server = RtspServer(**settings)
    for mount in mounts:
        if mount.file:
            server.add_file(mount.name, mount.file, loop=mount.loop)
        else:
            size = (mount.width_px, mount.height_px)
            server.add_frames(mount.name, mount.fps, *size, _frames(mount), keyframe_s=mount.keyframe_s)
    return server


def obey(server: RtspServer, order: dict[str, Any]) -> dict[str, Any]:
    match order["do"]:
        case "kill" | "start" as verb:
            getattr(server, verb)()
        case "hang" | "resume" | "disconnect" as verb:
            getattr(server, verb)(order["name"])
        case unknown:
            return {"error": f"unknown order {unknown!r}"}
    return {"done": order["do"]}


def _answer(function: Callable[[], dict[str, Any]]) -> bool:
    """Prints what `function` answers, or its error; returns whether it went well."""
    try:
        answer = function()
    except DriftboxError as error:
        answer = {"error": error.message, "remedy": error.remedy, "code": error.code}
    except Exception as error:
        # The other side of the pipe has to learn of anything that goes wrong here, whatever it is.
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    return "error" not in answer


def main() -> int:
    server: RtspServer | None = None

    def begin() -> dict[str, Any]:
        nonlocal server
        server = build(json.loads(sys.stdin.readline()))
        server.start()
        return {"port": server.port}

    if not _answer(begin) or server is None:
        return 3
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the whole group; the box decides when we end
        for line in sys.stdin:
            order = json.loads(line)
            _answer(lambda order=order: obey(server, order))  # type: ignore[misc]
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
