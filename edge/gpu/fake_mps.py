"""A stand-in for NVIDIA's MPS: `python -m edge.gpu.fake_mps` is its control program, `FakeClient` what CUDA does in a client.

As the real program it makes a daemon of itself (`-d`), listens in `CUDA_MPS_PIPE_DIRECTORY`, keeps its process id and its logs, and as
a shell sends the commands on its standard input to that daemon. It knows who is connected, with which percentage and memory limit. As
with the real one a fault of one client reaches all of them, and nobody new is let in before all have gone.

`FAKE_MPS` in the daemon's environment rehearses what goes wrong, by words:

    no-permission    cannot be started
    no-server        starts, but its server never does (a driver without MPS)
    mute             takes commands and does not answer
    stuck            does not end when told to
    stays-at-fault   does not recover by itself when its clients have gone
    old              of before CUDA 13.1: no static partitions
    no-static        says that it is new enough, and cannot be started for static partitions
    no-chunks        starts for static partitions, and the GPU has none
    no-add           lists its chunks, and makes no partition of them
    no-add-more      makes one partition and no other
    no-rm            removes no partition
    partitions-stay  partitions outlive the daemon (the device keeps them, as a file beside the pipe directory)
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PID_FILE = "nvidia-cuda-mps-control.pid"
VERSION, OLD_VERSION = 13010, 12080
#: Chunks of SMs of the device that it plays.
CHUNKS, CHUNK_SM = 16, 8
ALREADY = "An instance of this daemon is already running"
NOBODY = "Cannot find MPS control daemon process"


# --- the daemon -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Peer:
    """A connection: a shell that asks one command, or a client once it said hello."""

    link: socket.socket
    buffer: bytes = b""
    client: dict[str, Any] | None = None


@dataclass
class _Daemon:
    pipe_dir: Path
    log_dir: Path
    flaws: frozenset[str]
    static: bool = False
    server: int | None = None
    state: str = "ACTIVE"
    default_pct: float = 100.0
    #: Chunks of each partition, by its id, which is of letters, digits and slashes.
    partitions: dict[str, int] = field(default_factory=dict)
    clients: list[_Peer] = field(default_factory=list)
    quit_at_s: float | None = None
    made: int = 0

    def run(self) -> None:
        if "partitions-stay" in self.flaws:
            self.partitions = _kept(self.pipe_dir)
            self.made = len(self.partitions)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.pipe_dir / "control"))
        listener.listen()
        (self.pipe_dir / PID_FILE).write_text(str(os.getpid()))
        self.note(f"Starting control daemon using socket {self.pipe_dir / 'control'}")
        with selectors.DefaultSelector() as waiting:
            waiting.register(listener, selectors.EVENT_READ)
            while not self.over():
                for key, _ in waiting.select(0.05):
                    if key.data is None:
                        link, _ = listener.accept()
                        waiting.register(link, selectors.EVENT_READ, _Peer(link))
                    elif not self.hear(key.data):
                        waiting.unregister(key.data.link)
                        key.data.link.close()
                        self.left(key.data)
        for name in (PID_FILE, "control"):
            (self.pipe_dir / name).unlink(missing_ok=True)

    def over(self) -> bool:
        if self.quit_at_s is None or "stuck" in self.flaws:
            return False
        return not self.clients or time.monotonic() >= self.quit_at_s

    def hear(self, peer: _Peer) -> bool:
        """Reads and answers; False when the connection has ended."""
        try:
            data = peer.link.recv(65536)
        except OSError:
            return False
        if not data:
            return False
        peer.buffer += data
        while b"\n" in peer.buffer:
            line, _, peer.buffer = peer.buffer.partition(b"\n")
            answer = self.answer(peer, json.loads(line))
            if answer is not None:
                _send(peer.link, answer)
        return True

    def answer(self, peer: _Peer, said: dict[str, Any]) -> dict[str, Any] | None:
        if "hello" in said:
            return self.join(peer, said["hello"])
        if "fault" in said:
            self.fault(str(said["fault"]))
            return None
        if "mute" in self.flaws and said["command"].split()[0] != "start_server":
            return None
        return {"said": self.command(said["command"].split())}

    def join(self, peer: _Peer, hello: dict[str, Any]) -> dict[str, Any]:
        if self.state == "FAULT":
            return {"error": "MPS server is not ready to accept new MPS client requests"}
        pct = min(hello["pct"], self.default_pct)
        if self.static:
            gpu, _, mine = str(hello.get("partition", "")).partition("/")
            if mine not in self.partitions or not gpu.startswith("GPU-"):
                return {"error": "invalid resource configuration"}
            pct = 100.0 * self.partitions[mine] / CHUNKS
        self.server = self.server or os.getpid() + 1
        peer.client = hello | {"pct": pct}
        self.clients.append(peer)
        self.note(f"NEW CLIENT {hello['pid']}")
        return {"pct": peer.client["pct"]}

    def left(self, peer: _Peer) -> None:
        if peer in self.clients:
            self.clients.remove(peer)
        if not self.clients and self.state == "FAULT" and "stays-at-fault" not in self.flaws:
            self.state = "ACTIVE"

    def fault(self, text: str) -> None:
        """All clients hear of it, and none of whose it was."""
        self.state = "FAULT"
        self.note(f"Server encountered a fatal exception: {text}")
        for peer in self.clients:
            _send(peer.link, {"error": text})

    def command(self, words: list[str]) -> str:
        name, rest = words[0], words[1:]
        match name:
            case "get_server_list":
                return "" if self.server is None else str(self.server)
            case "get_server_status":
                return self.state
            case "start_server":
                self.note(
                    "Failed to initialize CUDA: system not supported" if "no-server" in self.flaws else "Starting new server"
                )
                self.server = None if "no-server" in self.flaws else os.getpid() + 1
                return ""
            case "get_client_list":
                return "\n".join(str(peer.client["pid"]) for peer in self.clients if peer.client)
            case "ps":
                rows = [f"{p.client['pid']} {p.client['pct']:g} {p.client['memory']}" for p in self.clients if p.client]
                return "\n".join(["PID PERCENT MEMORY", *rows])
            case "terminate_client":
                return self.terminate(int(rest[1]))
            case "set_default_active_thread_percentage":
                self.default_pct = float(rest[0])
                return f"{self.default_pct:.1f}"
            case "get_default_active_thread_percentage":
                return f"{self.default_pct:.1f}"
            case "sm_partition" | "lspart":
                return self.partition(words)
            case "quit":
                self.quit_at_s = time.monotonic() + (float(rest[1]) if rest[:1] == ["-t"] else 3600.0)
                return ""
            case "fault":  # no command of the real program: lets a test make one from outside
                self.fault(" ".join(rest) or "unspecified launch failure")
                return ""
        return f"Unknown command: {name}"

    def terminate(self, pid: int) -> str:
        found = [peer for peer in self.clients if peer.client and peer.client["pid"] == pid]
        for peer in found:
            _send(peer.link, {"error": "MPS client has been terminated"})
        return "0" if found else "CUDA_ERROR_INVALID_VALUE"

    def partition(self, words: list[str]) -> str:
        if not self.static:
            return "Static partitioning is not enabled"
        chunks = 0 if "no-chunks" in self.flaws else CHUNKS
        used = sum(self.partitions.values())
        if words[0] == "lspart":
            return self.listed(chunks - used, used) if chunks else ""
        if words[1] == "rm":
            return self.remove(words[3] if len(words) > 3 else words[2].partition("/")[2])
        if "no-add" in self.flaws or ("no-add-more" in self.flaws and self.made) or int(words[3]) > chunks - used:
            return f"Failed to fulfill the requested SM partition of {words[3]} chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        self.made += 1
        name = f"Dx4/{self.made:04d}A="
        self.partitions[name] = int(words[3])
        _keep(self.pipe_dir, self.partitions)
        return f"Partition {words[2]}/{name} created"

    def listed(self, free: int, used: int) -> str:
        head = (
            "GPU           Partition   free    used    free  used  clients",
            "                          chunks  chunks  SM    SM",
        )
        device = f"GPU-fake                  {free}  {used}  {free * CHUNK_SM}  {used * CHUNK_SM}"
        taken = {str(peer.client.get("partition", "")).partition("/")[2] for peer in self.clients if peer.client}
        rows = [
            f"GPU-fake  {name}  {chunks}  {chunks * CHUNK_SM}  {'Yes' if name in taken else 'No'}"
            for name, chunks in self.partitions.items()
        ]
        return "\n".join([*head, device, *rows])

    def remove(self, name: str) -> str:
        """By its id without the GPU. As the real one not while it has clients."""
        in_use = any(str((peer.client or {}).get("partition", "")).endswith(f"/{name}") for peer in self.clients)
        if in_use or "no-rm" in self.flaws or self.partitions.pop(name, None) is None:
            return f"Failed to remove partition {name}"
        _keep(self.pipe_dir, self.partitions)
        return ""

    def note(self, text: str) -> None:
        with (self.log_dir / "control.log").open("a") as file:
            file.write(f"[{time.strftime('%F %T')} Control {os.getpid()}] {text}\n")


def _kept(pipe_dir: Path) -> dict[str, int]:
    try:
        return dict(json.loads((pipe_dir.parent / "fake-gpu.json").read_text()))
    except (OSError, ValueError):
        return {}


def _keep(pipe_dir: Path, partitions: dict[str, int]) -> None:
    (pipe_dir.parent / "fake-gpu.json").write_text(json.dumps(partitions))


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        link.sendall(json.dumps(message).encode() + b"\n")


# --- a client ---------------------------------------------------------------------------------------------------------


class FakeClient:
    """What CUDA does in a process that became a client, for `edge.gpu.worker`: joins the daemon named in the environment, keeps to its
    percentage by taking so much longer, and fails in every call once the server had a fault.
    Raises RuntimeError('CUDA error: ...'), as torch does."""

    def __init__(self) -> None:
        env = os.environ
        self._error = ""
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        hello = {
            "pid": os.getpid(),
            "pct": float(env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")),
            "memory": env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""),
            "priority": env.get("CUDA_MPS_CLIENT_PRIORITY", "0"),
            "partition": env.get("CUDA_MPS_SM_PARTITION", ""),
        }
        try:
            self._link.connect(os.path.join(env["CUDA_MPS_PIPE_DIRECTORY"], "control"))
        except (KeyError, OSError) as error:
            raise RuntimeError(
                "CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server"
            ) from error
        self._lines = self._link.makefile("r")
        _send(self._link, {"hello": hello})
        answer = json.loads(self._lines.readline() or '{"error": "MPS remote procedural call failed"}')
        if "error" in answer:
            raise RuntimeError(f"CUDA error: {answer['error']}")
        self.thread_pct = float(answer["pct"])
        self._started_s = self._slept_s = 0.0
        threading.Thread(target=self._hear, daemon=True, name="fake-mps").start()

    def _hear(self) -> None:
        for line in self._lines:
            self._error = self._error or json.loads(line)["error"]
        self._error = self._error or "MPS remote procedural call failed"

    def begin(self) -> None:
        """Before work on the device."""
        self._check()
        self._started_s, self._slept_s = time.thread_time(), 0.0

    def end(self) -> float:
        """After it; the seconds for which the device was busy with it. May be asked again: it has then rested already."""
        used_s = time.thread_time() - self._started_s
        rest_s = used_s * (100.0 / self.thread_pct - 1.0)
        time.sleep(max(0.0, rest_s - self._slept_s))
        self._slept_s = max(rest_s, self._slept_s)
        self._check()
        return used_s * 100.0 / self.thread_pct

    def held_mib(self) -> float:
        return 0.0

    def let_go(self) -> None:
        """Nothing is held."""

    def fault(self) -> None:
        """This process did what must not be done; everybody will hear of it."""
        _send(self._link, {"fault": "an illegal memory access was encountered"})
        end_s = time.monotonic() + 5.0
        while not self._error and time.monotonic() < end_s:
            time.sleep(0.005)
        self._check()

    def _check(self) -> None:
        if self._error:
            raise RuntimeError(f"CUDA error: {self._error}")


# --- the control program ----------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    pipe_dir = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps-fake"))
    log_dir = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/tmp/nvidia-mps-fake"))
    flaws = frozenset(os.environ.get("FAKE_MPS", "").split())
    if "-v" in arguments:
        print(f"CUDA MPS Control binary version: {OLD_VERSION if 'old' in flaws else VERSION}")
        return 0
    if "-d" in arguments:
        if "-S" in arguments and flaws & {"old", "no-static"}:
            print("nvidia-cuda-mps-control: static partitioning is not supported")
            return 1
        if "no-permission" in flaws:
            print("Failed to start the control daemon: insufficient privileges")
            return 1
        if _link(pipe_dir) is not None:
            print(ALREADY)
            return 1
        daemon = _Daemon(pipe_dir, log_dir, flaws, static="-S" in arguments)
        return _in_background(daemon)
    return _shell(pipe_dir)


def _in_background(daemon: _Daemon) -> int:
    """Forks twice, so that nobody has to wait for the daemon; it keeps what it was given as output, as the real one does."""
    if os.fork() != 0:
        return 0
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    try:
        daemon.run()
    finally:
        os._exit(0)


def _link(pipe_dir: Path) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(str(pipe_dir / "control"))
    except OSError:
        link.close()
        return None
    return link


def _shell(pipe_dir: Path) -> int:
    """Each line in is a command."""
    for line in sys.stdin:
        if not line.strip():
            continue
        link = _link(pipe_dir)
        if link is None:
            print(NOBODY)
            return 1
        with link, link.makefile("r") as lines:
            _send(link, {"command": line.strip()})
            print(json.loads(lines.readline() or '{"said": ""}')["said"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
