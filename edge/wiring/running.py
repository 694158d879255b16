"""`driftbox run`: the built box with its pages, telemetry, fleet and watchdog, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import StorageError
from configs.schema import BoxConfig
from edge.box_status import RuntimeStatus
from edge.closing import ALL_S, Signals
from edge.fleet.wiring import fleet_part
from edge.labels_admin import FolderLabels
from edge.live_control import LiveControl
from edge.log_ring import RING
from edge.logs import set_up_logging
from edge.settings import BoxSettings
from edge.watchdog.charges import charge_of, watch_over
from edge.watchdog.devices import DeviceAlarm
from edge.watchdog.live import Watchdog
from edge.watchdog.systemd import ServiceManager
from edge.web.held import status_for
from edge.wiring.box import Box, built
from scheduler.commands import Note
from streams.samples import SampleStore

if TYPE_CHECKING:
    from edge.telemetry.mqtt import MqttPublisher
    from edge.web.accounts.book import Accounts
    from edge.web.live import LiveFeed
    from edge.web.services import Services
    from edge.web.tls import Certificates

log = logging.getLogger("driftbox")


def run_box(config: BoxConfig, *, demo: bool = False, file: Path | None = None, say: Callable[[str], None] = print) -> int:
    """Runs a box until it is stopped (SIGINT, SIGTERM). Returns the exit code. file: where config was read from."""
    set_up_logging()
    manager = ServiceManager()
    with Signals(leave_after_s=ALL_S) as signals, built(config, say=say) as box, ExitStack() as stack:
        status = RuntimeStatus(box.runtime, box=config.box.id, site=config.box.site, devices=box.devices)
        control = LiveControl(box.runtime, box.book, box.maker, data_dir=box.folder.root)
        box.runtime.before_end.append(control.stop)
        watchdog = watch_over(box.runtime, manager=manager)
        status.degraded, control.lift = watchdog.degraded, watchdog.lift
        _back_up(box, config, stack)
        fleet = fleet_part(box, status, control, tell=partial(_warned, box, "fleet"))
        box.runtime.before_end.append(fleet.stop)
        watchdog.take(charge_of("fleet", fleet))
        settings = BoxSettings(config, box.folder.root, file=file, utc_s=box.runtime.parts.clock.utc_s, book=box.settings)
        if config.web.enabled:
            from edge.web.serve import WebServer

            certificates = _certificates(box, config, stack, say)
            if certificates is not None:
                settings.certificate = partial(getattr, certificates, "certificate")
            services = _with_learning(_services(box, config, settings, control, status), box, status, watchdog, stack)
            services = replace(_with_health(services, box, status, watchdog, fleet.sentence), fleet=fleet)
            tls = certificates.context if certificates is not None else None
            server = stack.enter_context(
                WebServer(status, host=config.web.host, port=config.web.port, services=services, tls=tls)
            )
            watchdog.take(charge_of("web", server))
            say(f"status page: {server.url}")
            if services.accounts is not None:
                _say_claim(services.accounts, say)
        if config.telemetry.mqtt.enabled:
            from edge.telemetry.publisher import start_telemetry

            stack.callback(
                start_telemetry(
                    config,
                    box.runtime,
                    status,
                    box.store,
                    control,
                    look_after=partial(_look_after, watchdog, settings),
                    configured=lambda: [kept.entry for kept in box.book.read().cameras],
                )  # fmt: skip
            )
        fleet.start()
        # After telemetry, so that it hears of what a kill has left open, and of what ends with the box.
        box.media.start(partial(_warned, box, "media"))
        stack.callback(box.media.stop)
        watchdog.more_conditions += [box.media.conditions, DeviceAlarm(box.devices, box.runtime.parts.clock)]
        for name, worker in box.media.workers().items():
            watchdog.take(charge_of(name, worker))
        if demo:
            say("the demo's cameras drift after about a minute; the first better model is usual within five. Stop with Ctrl-C.")
        control.start()
        asyncio.run(_main(box, signals, manager, watchdog))
    return 0


def _services(box: Box, config: BoxConfig, settings: BoxSettings, control: LiveControl, status: RuntimeStatus) -> Services:
    """What the web interface is made of beside the status."""
    from edge.cameras.live_desk import LiveDesk
    from edge.cameras.onvif import Onvif
    from edge.cameras.probe import Prober
    from edge.web.hosts import host_names
    from edge.web.services import Services

    return Services(
        accounts=_accounts(box, config),
        hosts=host_names(config.web.hostnames),
        live=_live(box, status),
        labels=FolderLabels(box.folder.root, holdout_frac=config.window.holdout_frac),
        settings=settings,
        control=control,
        cameras=LiveDesk(control, Prober(), Onvif()),
        events=box.media.library,
    )


def _live(box: Box, status: RuntimeStatus) -> LiveFeed:
    """What pages are told as it happens: what changes in the status, and tracked objects."""
    from edge.web.live import LiveFeed

    feed = LiveFeed(status.status, seen_by=status_for)
    box.runtime.parts.object_listeners.append(
        lambda event: feed.publish("object", {"object": vars(event)}, camera=event.camera)
    )
    return feed


def _look_after(watchdog: Watchdog, settings: BoxSettings, publisher: MqttPublisher) -> None:
    watchdog.take(charge_of("telemetry", publisher))
    settings.connected = lambda: publisher.connected


def _with_health(services: Services, box: Box, status: RuntimeStatus, watchdog: Watchdog, fleet: Callable[[], str]) -> Services:
    """With how the box is, and what Prometheus is told."""
    from edge.box_health import BoxHealth, Sources
    from edge.store.outbox import waiting_in

    speaks = box.config.telemetry.mqtt.enabled
    health = BoxHealth(
        Sources(
            status=status, root=box.folder.root, config=lambda: box.settings.over(box.book.read().config), watchdog=watchdog, ring=RING,
            clock=box.runtime.parts.clock, outbox=lambda: waiting_in(box.store) if speaks else None,
            fleet=fleet,
        )
    )  # fmt: skip
    return replace(services, health=health, metrics=health)


def _back_up(box: Box, config: BoxConfig, stack: ExitStack) -> None:
    """Lets the running box back itself up."""
    from edge.box_health import DailyBackup

    storage, tell = config.storage, partial(_warned, box, "backup")
    daily = DailyBackup(
        box.folder.root, box.runtime.parts.clock, every_days=storage.backup_days, keep=storage.backups_kept, tell=tell
    )
    daily.start()
    stack.callback(daily.stop)


def _accounts(box: Box, config: BoxConfig) -> Accounts | None:
    """Who may ask; None: `web.login` is off, and the page says so to nobody but the operator."""
    from edge.store.accounts import AccountStore
    from edge.web.accounts.book import Accounts
    from edge.web.accounts.local import write_local_token

    if not config.web.login:
        if config.web.is_open:
            _warned(
                box, "login", f"web.login is off and web.host is {config.web.host}: whoever reaches the port sees the cameras"
            )
        return None
    clock = box.runtime.parts.clock
    return Accounts(AccountStore(box.store), clock, local=write_local_token(box.folder.root))


def _say_claim(accounts: Accounts, say: Callable[[str], None]) -> None:
    """The claim code of a new box, this once. It goes to whoever started it, and into no log of ours."""
    code = accounts.first_code()
    if code is not None:
        say(f"claim code: {code} (shown this once; open the page and make the first account with it)")
    elif not accounts.claimed():
        say("nobody has made an account yet; `driftbox accounts claim-code` shows a new claim code")


def _certificates(box: Box, config: BoxConfig, stack: ExitStack, say: Callable[[str], None]) -> Certificates | None:
    """What the page is served with; None: plain HTTP. Looked after while the box runs."""
    from edge.web.tls import Certificates, CertificateWatch

    if config.web.tls_kind == "off":
        if config.web.is_open and config.web.login:
            _warned(
                box,
                "tls",
                "web.tls is off: passwords cross the network unprotected, unless a proxy in front of the box speaks TLS",
            )
        return None
    clock = box.runtime.parts.clock
    certificates = Certificates(config.web, box.folder.root, now_utc=clock.utc_s())
    tell = partial(_warned, box, "certificate")
    for text in certificates.first_notes:
        tell(text)
    stack.enter_context(CertificateWatch(certificates, clock.utc_s, tell))
    say(f"certificate: SHA-256 {certificates.certificate.fingerprint}")
    return certificates


def _warned(box: Box, code: str, text: str) -> None:
    """In the log, on the page and in the database."""
    log.warning("%s", text)
    at_utc = box.runtime.parts.clock.utc_s()
    box.runtime.notes.append((at_utc, Note(stream="", code=code, text=text)))
    with contextlib.suppress(StorageError):
        box.store.add_note(at_utc, code, text)


def _with_learning(services: Services, box: Box, status: RuntimeStatus, watchdog: Watchdog, stack: ExitStack) -> Services:
    """With what the pages about learning, compute, models and queries ask."""
    from edge import before_after, gpu_history
    from edge.box_gpu import BoxGpu
    from edge.box_learning import BoxLearning
    from edge.box_models import BoxModels
    from edge.box_queries import BoxQueries
    from edge.box_why import BoxWhy
    from edge.plan_book import PlanBook
    from edge.store.plans import PlanStore

    runtime, parts = box.runtime, box.runtime.parts
    engine, backend, clock = parts.engine, parts.backend, parts.clock
    book = PlanBook(PlanStore(box.store), newest=lambda: engine.decided, policy=lambda: engine.config.policy, utc=clock.utc_s)
    parts.listeners.append(book.heard)
    looked_at = gpu_history.Sources(report=backend.report, memory=backend.memory, devices=box.devices)
    history = gpu_history.GpuHistory(looked_at, clock)
    history.start()
    stack.callback(history.stop)
    watchdog.take(charge_of("gpu-history", history.thread))
    compared = before_after.Sources(
        detector=partial(parts.shelf.detector, device="cpu"), samples=parts.samples,
        windows=SampleStore(box.folder.samples_dir).windows, task_of=lambda camera: runtime.watched[camera].task, scoring=parts.scoring,
    )  # fmt: skip
    return replace(
        services, learning=BoxLearning(runtime, book, before_after.Comparer(compared)), why=BoxWhy(book, clock.monotonic_s),
        gpu=BoxGpu(status, history, box.store, backend.change_cost),
        models=BoxModels(box.folder.root, box.store, services.control), queries=BoxQueries(runtime),
    )  # fmt: skip


async def _main(box: Box, signals: Signals, manager: ServiceManager, watchdog: Watchdog) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        manager.stopping()
        box.runtime.stop()

    signals.runs(stop=stop, hurry=box.runtime.closing.hurry)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.came)
    watchdog.start()
    loop.call_soon(manager.ready)  # when the cameras are started and the loop has come round
    try:
        await box.runtime.run(box.watched, box.first_window)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        signals.listen()  # web and MQTT are still to say farewell
