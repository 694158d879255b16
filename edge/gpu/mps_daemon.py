"""The box's own MPS control daemon, one per GPU: started, asked, drained, brought back after a fault, stopped.

NVIDIA MPS (Multi-Process Service) lets processes share a GPU at the same time. A control daemon listens on sockets in
`CUDA_MPS_PIPE_DIRECTORY`; each CUDA process with that variable becomes its client. Ours has folders of its own, so that nothing else
on the machine talks to it, and it to nothing else.

The seam is the control program: `control` is its command line, `nvidia-cuda-mps-control` or the stand-in `edge.gpu.fake_mps`. Facts are
from NVIDIA's MPS documentation, release 615, version 2 of the interface (the one that every driver has).

What is easily got wrong:
- The sockets' paths must fit 107 bytes. With a longer one the daemon starts, cannot listen, and ends without a word.
- `-d` leaves a process behind that holds what the starter gave it as output. Its output therefore goes to a file, not to a pipe.
- Commands may hang for ever (`terminate_client` does, now and then), so each has a time limit.
- A fatal fault of one client hits all of them, and new ones are refused until all have gone (`recover`).
- A daemon that was left behind by a box that was killed is ours, and is ended. Any other is not touched: who runs it may be using it.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
import os
import re
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from configs.errors import EnvironmentLacking
from configs.files import atomic_write
from configs.machine import boot_id

log = logging.getLogger("driftbox")

CONTROL: tuple[str, ...] = ("nvidia-cuda-mps-control",)
PID_FILE = "nvidia-cuda-mps-control.pid"
#: What the daemon leaves in its pipe directory.
LEFT_BEHIND = ("control", "control_privileged", "control_lock", "log", PID_FILE)
#: Bytes of a Unix socket's path on Linux, without the closing zero.
SOCKET_PATH_MAX = 107
#: Binary version from which static partitions are there (CUDA 13.1).
PARTITIONS_SINCE = 13010
#: Seconds between two looks while waiting for the daemon.
LOOK_S = 0.02
INSTEAD = "or set gpus.backend to lanes, which needs no daemon"


class ServerState(StrEnum):
    """Of the MPS server behind the daemon. NONE: none was started yet; GONE: the daemon itself does not run."""

    GONE = "gone"
    NONE = "none"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who started a daemon, written beside it. pid 0: it is about to be started. started: the kernel's start time of the process in
    clock ticks, which tells it from a later one with the same id. owner: the data folder of the box."""

    pid: int
    started: int
    boot_id: str
    uid: int
    owner: str


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    """A static partition as the daemon lists it. id: the part behind the GPU's UUID; used: whether it has clients."""

    id: str
    chunks: int
    used: bool


@dataclass(frozen=True, kw_only=True)
class PartitionTable:
    """How a GPU's multiprocessors are divided, in chunks of equal size. free, taken: chunks; sms: multiprocessors in all of them."""

    free: int
    taken: int
    sms: int
    rows: tuple[PartitionRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Other:
    """A control daemon that is not ours."""

    pid: int
    user: str
    command: str


def runtime_root(data_dir: Path, gpu: str) -> Path:
    """Where a GPU's daemon has its folders: below the data folder when the sockets' paths fit there, else in the user's runtime folder
    or the temporary one, under a name that follows from the data folder. gpu: its UUID."""
    name = re.sub(r"[^A-Za-z0-9]", "", gpu.removeprefix("GPU-"))[:8] or "gpu"
    below = data_dir.absolute() / "mps" / name
    if _fits(below):
        return below
    digest = hashlib.sha256(os.fsencode(data_dir.absolute())).hexdigest()[:10]
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    roots = [Path(base) / f"driftbox-{os.getuid()}-{digest}" / name for base in bases if base]
    return next((root for root in roots if _fits(root)), roots[-1])


def _fits(root: Path) -> bool:
    return max(len(os.fsencode(root / "pipe" / name)) for name in LEFT_BEHIND) <= SOCKET_PATH_MAX


class MpsDaemon:
    """One GPU's daemon. gpu: the GPU's UUID ('GPU-...'), which means the same to the daemon and to its clients whatever the order of
    devices; owner: the data folder; static: for static partitions instead of percentages (CUDA 13.1), from
    the next start on.
    Thread-safe. Every method raises EnvironmentLacking when the daemon cannot be asked or does not answer."""

    def __init__(
        self, root: Path, *, gpu: str, owner: str, control: Sequence[str] = CONTROL, static: bool = False,
        answer_s: float = 10.0, ready_s: float = 30.0,
    ) -> None:  # fmt: skip
        self.root, self.gpu, self.static = root, gpu, static
        self._owner, self._control = owner, tuple(control)
        self._answer_s, self._ready_s = answer_s, ready_s

    @property
    def pipe_dir(self) -> Path:
        return self.root / "pipe"

    @property
    def log_dir(self) -> Path:
        return self.root / "log"

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the daemon and its server and waits until clients may come. Ends a daemon that an earlier run of this box left
        behind. Raises EnvironmentLacking: the program is missing, not permitted, not able to (driver), or another owner's daemon is in
        the way; the message says what to do."""
        if self.static and not self.has_partitions():
            raise EnvironmentLacking(
                f"{self.gpu}: static partitions need the MPS of CUDA 13.1 or later", subject=self.gpu,
                remedy=f"update the driver, choose percentages, {INSTEAD}",
            )  # fmt: skip
        self._make_folders()
        self._clear_the_way()
        self._write_owner(pid=0, started=0)
        self._launch()
        pid = self._wait_for_pid()
        self._write_owner(pid=pid, started=_started(pid) or 0)
        self._start_server()
        for other in other_daemons(self._program, but=pid):
            log.info("another MPS daemon runs beside ours: process %d of %s", other.pid, other.user)

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """Ends the daemon, after `timeout_s` also with clients left. No-op when it does not run or is not ours."""
        pid = self._own_pid()
        if pid is not None:
            self._end(pid, timeout_s)
        if self._pid() is None:
            self._remove_left_behind()

    def drain(self, *, timeout_s: float) -> bool:
        """Waits until no client is left; False when some are after `timeout_s`."""
        return _until(lambda: not self.clients(), timeout_s)

    def recover(self, *, timeout_s: float = 10.0) -> bool:
        """Brings the daemon back to where clients may come, after a fatal fault. The caller has ended all clients of this daemon: the
        server waits for that. True: the server came back by itself; False: the daemon was started anew."""
        try:
            if self.state() is not ServerState.GONE and _until(self._ready_again, timeout_s):
                return True
        except EnvironmentLacking as error:
            log.warning("%s", error)
        log.warning("%s: MPS does not come back by itself; its daemon is started anew", self.gpu)
        self.stop(timeout_s=1.0)
        self.start()
        return False

    def _ready_again(self) -> bool:
        return self.state() in (ServerState.ACTIVE, ServerState.NONE) and not self.clients()

    # --- questions ----------------------------------------------------------------------------------------------------

    def state(self) -> ServerState:
        try:
            servers = self.servers() if self._pid() is not None else ()
            said = self.ask(f"get_server_status {servers[0]}").lower() if servers else ""
        except EnvironmentLacking:
            if self._pid() is not None:
                raise
            return ServerState.GONE  # it ended while it was asked
        if not servers:
            return ServerState.GONE if self._pid() is None else ServerState.NONE
        known = (s for s in (ServerState.FAULT, ServerState.INITIALIZING, ServerState.ACTIVE) if s.value in said)
        return next(known, ServerState.NONE)

    def servers(self) -> tuple[int, ...]:
        """Process ids of the servers."""
        return _pids(self.ask("get_server_list"))

    def clients(self) -> tuple[int, ...]:
        """Process ids of the connected clients."""
        return tuple(pid for server in self.servers() for pid in _pids(self.ask(f"get_client_list {server}")))

    def terminate_client(self, pid: int) -> bool:
        """Ends a client's work on the GPU, so that its process can be killed without harm to the others: killing a client in the middle
        of its work leaves the server undefined. False: it could not be done (an old driver, no answer, no such client)."""
        try:
            for server in self.servers():
                if pid in _pids(self.ask(f"get_client_list {server}")):
                    said = self.ask(f"terminate_client {server} {pid}").strip()
                    return said == "0" or "CUDA_SUCCESS" in said
        except EnvironmentLacking as error:
            log.warning("client %d: %s", pid, error)
        return False

    def set_default_thread_pct(self, pct: float) -> None:
        """The most that a client of servers started from now on may have, whatever its own percentage."""
        self.ask(f"set_default_active_thread_percentage {pct:g}")

    def version(self) -> int | None:
        """Of the control program, as 13010 for CUDA 13.1; None where it does not say."""
        return _version_in(self._run(["-v"])[1])

    def has_partitions(self) -> bool:
        """Whether static partitions are there. Not verified on a GPU."""
        return has_partitions(self.version())

    def add_partition(self, chunks: int) -> str:
        """A static partition of so many chunks of SMs; its id, behind the GPU's UUID. Not verified on a GPU."""
        said = self.ask(f"sm_partition add {self.gpu} {chunks}")
        found = re.search(r"(?:^|\s)GPU-[^\s/]+/(\S+)", said)
        if not found:
            raise EnvironmentLacking(
                f"{self.gpu}: no partition of {chunks} chunks: {said or 'no answer'}", subject=self.gpu,
                remedy="see what else uses this daemon",
            )  # fmt: skip
        return found[1]

    def remove_partition(self, partition: str) -> bool:
        """False: it is still there, because a client of it is. What `rm` says is not documented, so the daemon is asked again."""
        self.ask(f"sm_partition rm {self.gpu} {partition}")
        return all(row.id != partition for row in self.partitions().rows)

    def partitions(self) -> PartitionTable:
        """What `lspart` says of this GPU. Not verified on a GPU. Raises EnvironmentLacking when that is not understood, or nothing."""
        found = read_partitions(self.ask("lspart"), self.gpu)
        if found is None:
            raise EnvironmentLacking(
                f"{self.gpu}: lspart says nothing that is understood", subject=self.gpu,
                remedy="static partitions need a GPU of the Ampere generation or later",
            )  # fmt: skip
        return found

    def client_env(
        self, *, thread_pct: float = 100.0, memory_mib: float | None = None, below_normal: bool = False, partition: str = ""
    ) -> dict[str, str]:
        """The environment that makes a process a client. It is read when the process first uses CUDA, and never again.
        memory_mib: device memory it may hold, its context included; below_normal: others' kernels go first, as a hint; partition: of a
        daemon that was started for them, where a client must have one, and a percentage means nothing."""
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_dir),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_dir),
            "CUDA_VISIBLE_DEVICES": self.gpu,
            "CUDA_MPS_CLIENT_PRIORITY": "1" if below_normal else "0",
        }
        if memory_mib is not None:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, round(memory_mib))}M"
        if partition:
            return env | {"CUDA_MPS_SM_PARTITION": f"{self.gpu}/{partition}"}
        return env | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{thread_pct:g}"}

    def ask(self, command: str) -> str:
        """One command to the running daemon, and what it says."""
        code, said = self._run([], command + "\n")
        if code != 0:
            raise EnvironmentLacking(
                f"MPS of {self.gpu} refused {command.split()[0]!r}: {said or f'exit code {code}'}", subject=self.gpu,
                remedy=f"look into {self.log_dir / 'control.log'}",
            )  # fmt: skip
        return said

    # --- starting -----------------------------------------------------------------------------------------------------

    @property
    def _program(self) -> str:
        return Path(self._control[-1]).name

    def _make_folders(self) -> None:
        if not _fits(self.root):
            raise EnvironmentLacking(
                f"the path of {self.root} is too long for the sockets of MPS ({SOCKET_PATH_MAX} bytes)", subject=str(self.root),
                remedy=f"set XDG_RUNTIME_DIR to a short folder of your own, {INSTEAD}",
            )  # fmt: skip
        try:
            for folder in (self.root, self.pipe_dir, self.log_dir):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = os.lstat(self.root)
        except OSError as error:
            raise EnvironmentLacking(
                f"{self.root} cannot be made for MPS: {error.strerror}", subject=str(self.root), remedy="check its permissions"
            ) from error
        # In a folder for all, somebody else may have been there first.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise EnvironmentLacking(
                f"{self.root} belongs to somebody else", subject=str(self.root), remedy="remove it, or set XDG_RUNTIME_DIR"
            )
        self.root.chmod(0o700)

    def _clear_the_way(self) -> None:
        pid = self._pid()
        if pid is None:
            self._remove_left_behind()
            return
        if self._own_pid() is None:
            raise EnvironmentLacking(
                f"an MPS daemon that this box did not start uses {self.root} (process {pid} of {_user_of(pid)})", subject=self.gpu,
                remedy=f"end it yourself (echo quit | CUDA_MPS_PIPE_DIRECTORY={self.pipe_dir} {self._program}), {INSTEAD}",
            )  # fmt: skip
        log.warning("%s: an MPS daemon of an earlier run is still there (process %d) and is ended", self.gpu, pid)
        self._end(pid, 1.0)
        self._remove_left_behind()

    def _launch(self) -> None:
        code, said = self._run(["-d", "-S"] if self.static else ["-d"])
        if code == 0:
            return
        others = other_daemons(self._program)
        beside = "; ".join(f"process {other.pid} of {other.user}" for other in others)
        raise EnvironmentLacking(
            f"the MPS daemon of {self.gpu} cannot be started: {said or f'exit code {code}'}"
            + (f" (other MPS daemons: {beside}; they are left alone)" if beside else ""),
            subject=self.gpu,
            remedy=f"let the box run as a user who may use the GPU{', end the other daemon' if beside else ''}, {INSTEAD}",
        )

    def _wait_for_pid(self) -> int:
        _until(lambda: self._pid() is not None and (self.pipe_dir / "control").exists(), self._ready_s)
        pid = self._pid()
        if pid is None:
            raise self._failed("the MPS daemon ended at once")
        return pid

    def _start_server(self) -> None:
        """The server is where CUDA begins: what the driver cannot do shows here, and not at the first job."""
        self.ask(f"start_server -uid {os.getuid()}")
        if not _until(lambda: self.state() is ServerState.ACTIVE, self._ready_s):
            error = self._failed("the MPS server does not start")
            self.stop(timeout_s=1.0)
            raise error

    def _failed(self, what: str) -> EnvironmentLacking:
        said = _tail(self.log_dir / "server.log") or _tail(self.log_dir / "control.log") or "its logs say nothing"
        return EnvironmentLacking(
            f"{self.gpu}: {what}: {said}", subject=self.gpu,
            remedy=f"MPS needs Linux, a driver that has it, and a GPU that no other server holds exclusively; see to that, {INSTEAD}",
        )  # fmt: skip

    # --- whose is it --------------------------------------------------------------------------------------------------

    def _pid(self) -> int | None:
        """The process that listens in our folder, None: none."""
        try:
            pid = int((self.pipe_dir / PID_FILE).read_text().strip())
        except (OSError, ValueError):
            return None
        return pid if _is_daemon(_command_of(pid), self._program) else None

    def _own_pid(self) -> int | None:
        """The same, None also when this box did not start it."""
        pid, owner = self._pid(), self._read_owner()
        if pid is None or owner is None or _uid_of(pid) != os.getuid():
            return None
        same = (owner.boot_id, owner.uid, owner.owner) == (boot_id(), os.getuid(), self._owner)
        # pid 0: the box was killed between starting the daemon and noting its id.
        return pid if same and (owner.pid == 0 or (owner.pid, owner.started) == (pid, _started(pid))) else None

    def _read_owner(self) -> Owner | None:
        try:
            return Owner(**json.loads((self.root / "owner.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write_owner(self, *, pid: int, started: int) -> None:
        owner = Owner(pid=pid, started=started, boot_id=boot_id(), uid=os.getuid(), owner=self._owner)
        atomic_write(self.root / "owner.json", json.dumps(asdict(owner)).encode())

    def _end(self, pid: int, timeout_s: float) -> None:
        """Asks a daemon of ours to end, then makes it. The process is looked at before each signal: ids are used again."""
        started = _started(pid)

        def gone() -> bool:
            return _started(pid) != started or _command_of(pid) == ()

        for command in (f"quit -t {max(1, round(timeout_s))}", "quit"):
            with suppress(EnvironmentLacking):
                self.ask(command)
                break
        if _until(gone, timeout_s + 2.0):
            return
        for which in (signal.SIGTERM, signal.SIGKILL):
            if gone():
                return
            try:
                os.kill(pid, which)
            except ProcessLookupError:
                return
            except PermissionError as error:
                raise EnvironmentLacking(
                    f"the MPS daemon of {self.gpu} (process {pid}) does not end", subject=self.gpu, remedy=f"end process {pid}"
                ) from error
            _until(gone, 2.0)

    def _remove_left_behind(self) -> None:
        for name in LEFT_BEHIND:
            (self.pipe_dir / name).unlink(missing_ok=True)
        (self.root / "owner.json").unlink(missing_ok=True)

    # --- the program --------------------------------------------------------------------------------------------------

    def _run(self, arguments: Sequence[str], said: str = "") -> tuple[int, str]:
        """(exit code, what it printed). Raises EnvironmentLacking when it cannot be run or takes too long."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")} | self._daemon_env()
        with tempfile.TemporaryFile() as printed:
            try:
                done = subprocess.run(
                    [*self._control, *arguments], input=said.encode(), stdout=printed, stderr=subprocess.STDOUT, env=env,
                    timeout=self._answer_s, check=False,
                )  # fmt: skip
            except FileNotFoundError as error:
                raise EnvironmentLacking(
                    f"{self._program} is not installed", subject=self._program,
                    remedy=f"install the compute utilities of the NVIDIA driver, {INSTEAD}",
                ) from error  # fmt: skip
            except PermissionError as error:
                raise EnvironmentLacking(
                    f"{self._program} may not be run", subject=self._program, remedy=f"check its permissions, {INSTEAD}"
                ) from error
            except subprocess.TimeoutExpired as error:
                raise EnvironmentLacking(
                    f"MPS of {self.gpu} does not answer {(said.split() or arguments)[0]!r} within {self._answer_s:g} s",
                    subject=self.gpu, remedy=f"look into {self.log_dir / 'control.log'}, {INSTEAD}",
                ) from error  # fmt: skip
            printed.seek(0)
            return done.returncode, printed.read(65536).decode(errors="replace").strip()

    def _daemon_env(self) -> dict[str, str]:
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_dir),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_dir),
            "CUDA_VISIBLE_DEVICES": self.gpu,
        }


# --- the program, asked without a daemon ------------------------------------------------------------------------------


def control_version(control: Sequence[str] = CONTROL) -> int | None:
    """See `MpsDaemon.version`; None also where it cannot be run."""
    try:
        done = subprocess.run([*control, "-v"], capture_output=True, timeout=10.0, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return _version_in((done.stdout + done.stderr).decode(errors="replace"))


def has_partitions(version: int | None) -> bool:
    """Whether a control program of that version knows static partitions."""
    return (version or 0) >= PARTITIONS_SINCE


# --- processes --------------------------------------------------------------------------------------------------------


def other_daemons(program: str = CONTROL[-1], *, but: int | None = None) -> list[Other]:
    """Control daemons on this machine besides process `but`, of whatever owner. They are only ever told about."""
    found = []
    for pid in _all_pids():
        command = _command_of(pid)
        if pid != but and _is_daemon(command, program):
            found.append(Other(pid=pid, user=_user_of(pid), command=" ".join(command)))
    return found


def _is_daemon(command: Sequence[str], program: str) -> bool:
    return any(Path(word).name == program for word in command) and bool({"-d", "-f"} & set(command))


def _all_pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _command_of(pid: int) -> tuple[str, ...]:
    """Its command line; () when it does not run (a zombie has none)."""
    try:
        return tuple(os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if word)
    except OSError:
        return ()


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of its stat, counted behind the name, which may hold anything)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _uid_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _user_of(pid: int) -> str:
    uid = _uid_of(pid)
    if uid == os.getuid():
        with suppress(KeyError, OSError):
            return getpass.getuser()
    return f"user {uid}"


def _version_in(said: str) -> int | None:
    found = re.search(r"\b(\d{5})\b", said)
    return int(found[1]) if found else None


def read_partitions(said: str, gpu: str) -> PartitionTable | None:
    """`lspart` of one GPU; None: it is not in there. A row begins with the beginning of its UUID. What is not known stands as '-' or
    not at all: four numbers are the GPU (free and used chunks, free and used SMs), a name, two numbers and Yes or No one partition."""
    device: tuple[int, ...] | None = None
    rows = []
    for line in said.splitlines():
        first, *words = [word for word in line.split() if word != "-"] or [""]
        if not first.startswith("GPU-") or not gpu.startswith(first):
            continue
        if len(words) == 4 and all(word.isdigit() for word in words):
            device = tuple(int(word) for word in words)
        elif len(words) == 4 and words[1].isdigit() and words[3] in ("Yes", "No"):
            rows.append(PartitionRow(id=words[0], chunks=int(words[1]), used=words[3] == "Yes"))
    if device is None:
        return None
    return PartitionTable(free=device[0], taken=device[1], sms=device[2] + device[3], rows=tuple(rows))


def _pids(said: str) -> tuple[int, ...]:
    return tuple(int(word) for word in said.split() if word.isdigit())


def _tail(path: Path) -> str:
    """The last line of a log, for people."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""


def _until(true: Callable[[], Any], timeout_s: float) -> bool:
    """Waits until `true()`; False when it is not after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() >= end_s:
            return False
        time.sleep(LOOK_S)
    return True
