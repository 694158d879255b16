"""`driftbox doctor`: looks at the world the box needs, one finding per check, each bad one with its remedy. Changes nothing.

Every check is independent: one that fails, even in a way nobody foresaw, is a finding and never the end of the others.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import DriftboxError, EnvironmentLacking, redact
from configs.schema import BoxConfig, CameraEntry
from configs.schema.telemetry import is_loopback
from edge.clock import Clock, SystemClock

if TYPE_CHECKING:
    from edge.gpu.nvml import Gpu, Survey

#: How long a camera may take to give its first frame.
CAMERA_S = 8.0
BROKER_S = 5.0
CAMERAS_AT_ONCE = 8
#: A clock outside these years is not set; certificates and retention depend on it.
YEARS = (2025, 2099)


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # the box runs, but something will be missed
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line. exit_code: what a bad finding asks of the command: 3 environment, 2 configuration, 1 a camera."""

    check: str
    level: Level
    text: str
    remedy: str = ""
    exit_code: int = 3


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level=Level.OK, text=text)


def warn(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.WARN, text=text, remedy=remedy)


def bad(check: str, text: str, remedy: str, *, exit_code: int = 3) -> Finding:
    return Finding(check=check, level=Level.BAD, text=text, remedy=remedy, exit_code=exit_code)


Check = Callable[[BoxConfig], Finding]


def examine(config: BoxConfig) -> Iterator[Finding]:
    """All findings, as they come; cameras last, several at once."""
    for name, check in CHECKS.items():
        yield guarded(name, check, config)
    for name in model_names(config):
        yield guarded(f"model {name}", lambda c, name=name: check_model(c, name), config)  # type: ignore[misc]
    with ThreadPoolExecutor(CAMERAS_AT_ONCE, thread_name_prefix="doctor") as pool:
        yield from pool.map(
            lambda camera: guarded(f"camera {camera.id}", lambda _: check_camera(camera), config), config.active_cameras
        )


def model_names(config: BoxConfig) -> list[str]:
    """Every model that the box would load, each once: those of detection, then those of the cameras and their tasks."""
    names = [config.models.edge, config.models.golden]
    for camera in config.active_cameras:
        usual = config.models.for_task(camera.task)
        names += [camera.edge or usual.edge, usual.golden]
    return list(dict.fromkeys(names))


def exit_code(findings: list[Finding]) -> int:
    """0 when nothing is bad, else the weightiest: 3 before 2 before 1."""
    return max((f.exit_code for f in findings if f.level is Level.BAD), default=0)


def guarded(name: str, check: Check, config: BoxConfig) -> Finding:
    """The check's finding; whatever it raises becomes a bad one."""
    try:
        return check(config)
    except DriftboxError as error:
        return bad(name, error.message, error.remedy or "see the message", exit_code=error.exit_code)
    except Exception as error:
        return bad(name, redact(f"{type(error).__name__}: {error}"), "run again with --debug and report it")


# --- this machine -----------------------------------------------------------------------------------------------------


def check_python(config: BoxConfig) -> Finding:
    # Older ones never come here: pip refuses to install Driftbox on them.
    return ok("python", ".".join(str(part) for part in sys.version_info[:3]))


def check_libraries(config: BoxConfig) -> Finding:
    """The compiled ones, which fail at import when the system lacks something."""
    import av
    import cv2
    import torch

    import models.torch_compat  # noqa: F401  - before torchvision, see there
    import torchvision  # isort: skip

    versions = {"torch": torch, "torchvision": torchvision, "opencv": cv2, "av": av}
    return ok("libraries", ", ".join(f"{name} {module.__version__}" for name, module in versions.items()))


def check_lanes(config: BoxConfig) -> Finding:
    from edge.gpu.lanes import usable_cores

    cores, wanted = usable_cores(), config.gpus.capacity_pct
    if config.gpus.backend == "none":
        return warn(
            "lanes",
            "gpus.backend is none: jobs run as they come, and the plan's shares are only wishes",
            "set gpus.backend to lanes",
        )
    if config.gpus.device == "cuda":
        return ok("lanes", f"{wanted} pct of GPU {config.gpus.index}, kept by {config.gpus.backend}")
    if wanted > 100 * cores:
        return bad(
            "lanes",
            f"gpus.capacity_pct is {wanted}, this machine has {cores} cores ({100 * cores} pct)",
            f"set gpus.capacity_pct to {max(10, 100 * cores - 50)} or less",
            exit_code=2,
        )
    if wanted > 100 * cores - 25:
        return warn(
            "lanes",
            f"gpus.capacity_pct {wanted} leaves little of {cores} cores for cameras and the system",
            f"shares may not be kept: set it to {max(10, 100 * cores - 50)} or less",
        )
    return ok("lanes", f"{wanted} pct of {100 * cores} pct ({cores} cores)")


def survey_gpus() -> Survey:
    """What the driver says now."""
    from edge.gpu.nvml import DeviceReader

    reader = DeviceReader(tell=lambda _: None)
    try:
        return reader.read()
    finally:
        reader.close()


def check_gpu(config: BoxConfig) -> Finding:
    """The GPUs that are there; bad when the configured one cannot be used."""
    from edge.gpu.choose import why_not

    survey = survey_gpus()
    lacking = why_not(config.gpus, survey)
    if lacking is not None:
        return bad("gpu", lacking.message, lacking.remedy)
    found = ", ".join(device_words(gpu) for gpu in survey.devices)
    if config.gpus.device == "cuda":
        return _gpu_in_use(config, survey.devices[config.gpus.index], found)
    sick = next((gpu for gpu in survey.devices if gpu.code), None)
    if sick is not None:
        return warn("gpu", f"{found}; not used (gpus.device is cpu)", sick.remedy)
    if not survey.devices:
        return ok("gpu", f"everything runs on the CPU: {survey.reason or 'there is no GPU'}")
    return ok("gpu", f"{found}; not used: gpus.device is cpu")


def _gpu_in_use(config: BoxConfig, gpu: Gpu, found: str) -> Finding:
    from edge.gpu.cuda import cuda_missing

    missing = cuda_missing()
    if missing:
        return bad(
            "gpu", f"{found}; but {missing}", "install the CUDA build of torch and torchvision, or set gpus.device to cpu"
        )
    trouble = gpu_trouble(gpu, own_pid=os.getpid())
    return warn("gpu", f"{found}: {trouble[0]}", trouble[1]) if trouble else ok("gpu", found)


def device_words(gpu: Gpu) -> str:
    """'GPU 0 NVIDIA H200 (141.0 GiB, 12 % busy, 45 C, 120 W)'; its problem when it has one."""
    facts = gpu.facts
    if facts.problem:
        return f"GPU {facts.index} {facts.name} ({facts.problem})"
    said = [f"{facts.memory_total_mib / 1024:.1f} GiB"] if facts.memory_total_mib else []
    for value, unit in ((facts.utilisation_pct, "% busy"), (facts.temperature_c, "C"), (facts.power_w, "W")):
        if value is not None:
            said.append(f"{value:.0f} {unit}")
    return f"GPU {facts.index} {facts.name} ({', '.join(said)})" if said else f"GPU {facts.index} {facts.name}"


def gpu_trouble(gpu: Gpu, *, own_pid: int) -> tuple[str, str] | None:
    """(what, remedy) of the worst that does not keep the GPU from working; None: all is well."""
    from edge.gpu.nvml import BY_CHOICE, HOT_C

    facts = gpu.facts
    if facts.ecc_errors:
        return (
            f"{facts.ecc_errors} uncorrected memory errors since the driver was loaded",
            f"restart the machine; when they come again, have the card replaced (nvidia-smi -q -d ECC -i {facts.index})",
        )
    held = [words for words in facts.throttled if words not in BY_CHOICE]
    if held:
        return (
            f"its clocks are held down: {', '.join(held)}",
            "look at cooling, power limit and supply: shares of it are worth less now",
        )
    if facts.temperature_c is not None and facts.temperature_c >= HOT_C:
        return f"it is hot: {facts.temperature_c:.0f} C", "look at its cooling before it slows down"
    others = [p for p in gpu.processes if p.pid != own_pid]
    if others:
        mib = sum(p.used_mib or 0.0 for p in others)
        return (
            f"others compute on it: {len(others)} process{'' if len(others) == 1 else 'es'}, {mib:.0f} MiB",
            "a share is kept among our jobs only: end the others (nvidia-smi lists them), or promise less (gpus.capacity_pct)",
        )
    return None


def check_mps(config: BoxConfig) -> Finding:
    """The control program of MPS and other people's daemons; only a box with that backend needs it."""
    from edge.gpu.mps_daemon import CONTROL, INSTEAD, other_daemons

    if config.gpus.backend != "mps":
        return ok("mps", f"not used: gpus.backend is {config.gpus.backend}")
    program = shutil.which(CONTROL[0])
    if program is None:
        return bad(
            "mps", f"{CONTROL[0]} is not there: this driver came without MPS", f"install the driver's MPS package, {INSTEAD}"
        )
    if not os.access(program, os.X_OK):
        return bad("mps", f"{program} may not be run by this user", f"allow it, {INSTEAD}")
    others = other_daemons(but=_own_daemon(config))
    if others:
        whose = "; ".join(f"process {o.pid} of {o.user}" for o in others)
        remedy = f"it is left alone; if nobody needs it, its owner ends it: echo quit | {CONTROL[0]}"
        return warn("mps", f"an MPS daemon that is not ours runs: {whose}", remedy)
    return _check_partitions(config) or ok("mps", f"{program}; the box starts a daemon of its own")


def _check_partitions(config: BoxConfig) -> Finding | None:
    """Static partitions that are wanted: whether this driver can have them, and whether the box could use them when it last tried."""
    from edge.gpu.mps_daemon import control_version, has_partitions
    from edge.gpu.mps_partitions import GIVEN_UP

    if config.gpus.mps_static == "off":
        return None
    version = control_version()
    if not has_partitions(version):
        text = f"static partitions need the MPS of CUDA 13.1; this one says {version or 'nothing'}: percentages keep the shares"
        if config.gpus.mps_static == "auto":
            return ok("mps", text)
        return warn("mps", text, "update the driver, or set gpus.mps_static to off")
    try:
        given_up = json.loads((config.box.data_dir / GIVEN_UP).read_text(encoding="utf-8"))
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(given_up["at_utc"]))
        why = str(given_up["why"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ok("mps", f"MPS {version}; the box starts a daemon of its own, with static partitions")
    return warn(
        "mps", f"static partitions were given up on {when}: {why}",
        "percentages keep the shares; see to it and restart the box, or set gpus.mps_static to off",
    )  # fmt: skip


def _own_daemon(config: BoxConfig) -> int | None:
    """Process of the daemon of a box that runs on this data folder."""
    from edge.gpu.mps_daemon import PID_FILE, runtime_root

    devices = survey_gpus().devices
    if config.gpus.index >= len(devices):
        return None
    root = runtime_root(config.box.data_dir, devices[config.gpus.index].facts.uuid)
    try:
        return int((root / "pipe" / PID_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def check_mig(config: BoxConfig) -> Finding:
    """The partitions that there are, and what a start would change of them. Changes nothing itself."""
    from edge.gpu.choose import chosen_instance, why_not

    survey = survey_gpus()
    parts = survey.instances
    listed = ", ".join(
        f"GPU {i.gpu} {i.name} {i.uuid} ({i.size_pct:.0f} pct, {i.memory_total_mib / 1024:.1f} GiB)" for i in parts
    )
    if config.gpus.backend != "mig":
        return ok("mig", f"not used: gpus.backend is {config.gpus.backend}" + (f"; there are {listed}" if parts else ""))
    lacking = why_not(config.gpus, survey)
    if lacking is not None:
        return bad("mig", lacking.message, lacking.remedy)
    if config.gpus.mig_reconfigure:
        return _own_partition(config, listed)
    chosen = chosen_instance(config.gpus, survey.devices[config.gpus.index])
    return ok("mig", f"the box works in {chosen.uuid if chosen else '?'}; there are {listed}")


def _own_partition(config: BoxConfig, listed: str) -> Finding:
    from edge.gpu.choose import division

    try:
        with division(config.gpus, config.box.data_dir) as (own, profile):
            said = own.change(profile).words(profile)
    except EnvironmentLacking as lacking:
        return bad("mig", lacking.message, lacking.remedy)
    return ok("mig", f"{said}; there are {listed or 'none yet'}")


def check_clock(config: BoxConfig, clock: Clock | None = None, pause: Callable[[], None] = lambda: time.sleep(0.2)) -> Finding:
    """Set at all, and advancing like the monotonic clock."""
    clock = clock or SystemClock()
    year = datetime.fromtimestamp(clock.utc_s(), UTC).year
    if not YEARS[0] <= year <= YEARS[1]:
        return bad("clock", f"the system's clock says the year is {year}", "set it: sudo timedatectl set-ntp true")
    before_s, before_utc = clock.monotonic_s(), clock.utc_s()
    pause()
    jump_s = (clock.utc_s() - before_utc) - (clock.monotonic_s() - before_s)
    if abs(jump_s) > 0.1:
        return warn("clock", f"the system's clock jumped by {jump_s:+.1f} s just now", "let one service keep it (NTP)")
    return ok("clock", datetime.fromtimestamp(clock.utc_s(), UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))


# --- what the configuration names --------------------------------------------------------------------------------------


def _nearest_folder(path: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def check_disk(config: BoxConfig) -> Finding:
    folder = _nearest_folder(config.box.data_dir)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return bad(
            "disk",
            f"{folder} cannot be written: {error.strerror}",
            "correct box.data_dir or the folder's owner and permissions",
        )
    free_mib, needed_mib = shutil.disk_usage(folder).free // 2**20, config.storage.min_free_mib
    if free_mib < needed_mib:
        return bad(
            "disk",
            f"{free_mib} MiB free at {folder}, storage.min_free_mib is {needed_mib}",
            "free some space, or move box.data_dir",
        )
    if free_mib < 1024 * config.storage.max_gib:
        return warn(
            "disk",
            f"{free_mib} MiB free at {folder}, samples may take {config.storage.max_gib:g} GiB",
            "lower storage.max_gib; the box stops sampling below storage.min_free_mib",
        )
    return ok("disk", f"{free_mib / 1024:.1f} GiB free at {folder}")


def check_lock(config: BoxConfig) -> Finding:
    """Whether a box runs on the data folder. A folder that is not there yet is not made."""
    path = config.box.data_dir / ".lock"
    if not path.is_file():
        return ok("lock", f"no box has run in {config.box.data_dir} yet")
    # Shared and let go at once: a box that starts at this very moment finds the folder in use and says so.
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = file.read(32).decode(errors="replace").strip()
            if _is_driftbox(config):
                return ok("lock", f"a box runs on {config.box.data_dir} (process {owner})")
            return warn(
                "lock",
                f"{config.box.data_dir} is in use by process {owner or '?'}",
                "a second box cannot use the same folder: stop that one, or choose another box.data_dir",
            )
    return ok("lock", f"{config.box.data_dir} is free")


def check_port(config: BoxConfig) -> Finding:
    from edge.web.serve import bind

    if not config.web.enabled:
        return ok("web", "switched off")
    try:
        bind(config.web.host, config.web.port).close()
    except EnvironmentLacking as error:
        if error.code == "port_taken" and _is_driftbox(config):
            return ok("web", f"a Driftbox answers on {config.web.host}:{config.web.port} already")
        raise
    if config.web.is_open and not config.web.login:
        return warn(
            "web",
            f"{config.web.host}:{config.web.port} is free, and whoever reaches it sees the cameras without login",
            "set web.login to true, or web.host to 127.0.0.1",
        )
    return ok("web", f"{config.web.host}:{config.web.port} is free")


def check_certificate(config: BoxConfig) -> Finding:
    """That of the page: whether the given one can be served, and for how long."""
    web = config.web
    if not web.enabled or web.tls_kind == "off":
        if web.enabled and web.is_open and web.login:
            return warn(
                "certificate",
                "web.tls is off: passwords cross the network unprotected, unless a proxy in front of the box speaks TLS",
                "set web.tls to own or given",
            )
        return ok("certificate", "plain HTTP: only this machine reaches the page" if not web.is_open else "plain HTTP")
    from edge.web.tls import look_at, own_paths

    own = own_paths(config.box.data_dir)
    given = (web.cert_file, web.key_file) if web.cert_file and web.key_file else None
    if given is None and not own[0].is_file():
        return ok("certificate", "the box makes its own at the first start")
    now_utc = time.time()
    found = look_at(*(given or own))
    state, words = found.state(now_utc), f"{(given or own)[0]}: {found.left_words(now_utc)}"
    if state == "good" or given is None:
        return ok("certificate", words if given else f"{words}; the box renews it by itself")
    if state == "expired":
        return bad(
            "certificate", f"{words}; the box's own one stands in for it", "put a newer one there: it is taken up at once"
        )
    if state == "early":
        return warn("certificate", f"{words}, but not yet", "is the clock of this machine right?")
    return warn("certificate", words, "put a newer one there: it is taken up without a restart")


def _is_driftbox(config: BoxConfig) -> bool:
    from edge.client import running_status

    return running_status(config) is not None


def check_broker(config: BoxConfig) -> Finding:
    """Whether the broker takes us, and how long the box's certificate is still good for."""
    from edge.telemetry.connection import certificate_trouble, probe

    mqtt = config.telemetry.mqtt
    if not mqtt.enabled:
        return ok("broker", "switched off")
    if mqtt.broker == "embedded":
        return _own_broker(config)
    trouble = certificate_trouble(mqtt, time.time())
    if trouble and "expired" in trouble:
        return bad("broker", trouble, "renew it, and correct telemetry.mqtt.cert_file and key_file")
    started_s = time.monotonic()
    probe(mqtt, timeout_s=BROKER_S)
    how = ", over TLS" if mqtt.tls else ""
    accepted = f"{mqtt.host}:{mqtt.port} accepted us after {1000 * (time.monotonic() - started_s):.0f} ms{how}"
    if trouble:
        return warn("broker", f"{accepted}; {trouble}", "renew it in time")
    if mqtt.password is not None and not mqtt.tls and not is_loopback(mqtt.host):
        return warn(
            "broker", f"{accepted}; the password travels in clear text", "set telemetry.mqtt.tls, when the broker knows TLS"
        )
    return ok("broker", accepted)


def check_fleet(config: BoxConfig) -> Finding:
    """Whether the membership is whole, the certificate good, and the fleet's broker takes us."""
    from edge.fleet.membership import MemberFolder
    from edge.telemetry.connection import certificate_trouble, probe

    folder = MemberFolder(config.box.data_dir)
    member = folder.read()
    if member is None:
        return ok("fleet", "member of none")
    if not config.fleet.enabled:
        return ok("fleet", f"member of the fleet of {member.url}, switched off by fleet.enabled")
    if member.box != config.box.id:
        return warn(
            "fleet", f"the box joined as {member.box} and is now called {config.box.id}: the fleet knows it as {member.box}",
            "driftbox fleet leave, then join again",
        )  # fmt: skip
    mqtt = folder.mqtt(member)
    trouble = certificate_trouble(mqtt, time.time()) if member.broker.tls else ""
    if "has expired" in trouble:
        return warn("fleet", f"{trouble}; the box is alone", "driftbox fleet leave, then join again with a new code")
    try:
        probe(mqtt, timeout_s=BROKER_S)
    except DriftboxError as error:  # the box does its work alone
        remedy = "does the controller run? The box goes on with what it was told last"
        return warn("fleet", f"member of the fleet of {member.url}; {error.message}", remedy)
    return ok("fleet", f"member of the fleet of {member.url}; its broker takes the box")


def _own_broker(config: BoxConfig) -> Finding:
    from edge.telemetry.connection import certificate_end_utc
    from edge.web.serve import bind

    mqtt, embedded = config.telemetry.mqtt, config.telemetry.mqtt.embedded
    for user in embedded.users:
        user.password.resolve()
    if embedded.cert_file is not None and certificate_end_utc(embedded.cert_file) <= time.time():
        return bad("broker", f"the certificate {embedded.cert_file} of the embedded broker has expired", "renew it")
    where = f"{embedded.listen}:{mqtt.port}"
    try:
        bind(embedded.listen, mqtt.port).close()
    except EnvironmentLacking as error:
        if error.code == "port_taken" and _is_driftbox(config):
            return ok("broker", f"the box's own one runs on {where}")
        return bad(
            "broker", f"the box's own one cannot listen on {where}: {error.message}", "choose another telemetry.mqtt.port"
        )
    return ok("broker", f"the box's own one will listen on {where}{', over TLS' if embedded.cert_file else ''}")


def check_model(config: BoxConfig, name: str) -> Finding:
    """Loads the model as the box will, but downloads nothing."""
    from edge.environment import use_weights_dir

    use_weights_dir(config)
    from models.zoo import load_detector

    started_s = time.monotonic()
    detector = load_detector(name, download=False)
    took_s = time.monotonic() - started_s
    return ok(f"model {name}", f"{detector.spec.arch} at {detector.spec.input_px} px, loaded in {took_s:.1f} s")


def check_camera(camera: CameraEntry, *, timeout_s: float = CAMERA_S) -> Finding:
    """Opens it and waits for one frame."""
    name = f"camera {camera.id}"
    if camera.url.scheme == "rendered":
        return ok(name, "a rendered scene: served by the box itself")
    from streams.camera import open_camera

    running = open_camera(camera.id, camera.url.resolve(), transport=camera.transport, rtsp_by=camera.rtsp_by)
    started_s = time.monotonic()
    running.start()
    try:
        running.want(fps=1.0)
        frame = None
        while frame is None and time.monotonic() - started_s < timeout_s and str(running.status().code) not in HOPELESS:
            frame = running.next_frame(after_seq=-1, timeout_s=0.25)
        status = running.status()
    finally:
        running.stop()
    if frame is None:
        reason = f"{status.code}: {status.error}" if status.code else f"no frame within {timeout_s:g} s"
        return bad(name, f"{camera.url}: {reason}", CAMERA_REMEDIES.get(str(status.code), CAMERA_REMEDIES[""]), exit_code=1)
    height, width = frame.image.shape[:2]
    return ok(name, f"{width}x{height} px, {status.fps:.1f} frames/s, first frame after {time.monotonic() - started_s:.1f} s")


#: Codes that another try a few seconds later will not change.
HOPELESS = ("auth", "not_found", "codec", "ended")
#: By StreamErrorCode.
CAMERA_REMEDIES: dict[str, str] = {
    "auth": "correct user and password of the camera's url",
    "not_found": "correct the path or the stream's name in the camera's url",
    "timeout": "is the camera on, and reachable from here? a firewall may hold RTSP back: try transport: tcp",
    "codec": "set the camera to H.264, H.265 or MJPEG",
    "network": "correct host and port; is the camera on and in this network?",
    "ended": "the file holds no video, or ended at once",
    "": "look at the same address with a player such as VLC",
}

CHECKS: dict[str, Check] = {
    "python": check_python,
    "libraries": check_libraries,
    "gpu": check_gpu,
    "mps": check_mps,
    "mig": check_mig,
    "lanes": check_lanes,
    "clock": check_clock,
    "disk": check_disk,
    "lock": check_lock,
    "web": check_port,
    "certificate": check_certificate,
    "broker": check_broker,
    "fleet": check_fleet,
}
