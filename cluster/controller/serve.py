"""`driftbox fleet serve`: puts a controller together and runs it until it is told to stop. The only file here that names concrete
classes.

    data folder: fleet.db (state, members, history)   accounts.db (people)   ca/ (the authority)   parcels/, bundles/   web/ (token)
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster.cilantro.policies import Objective, Settings
from cluster.controller.authority import Authority
from cluster.controller.box_api import Gatehouse, make_box_app
from cluster.controller.broker import FleetBroker
from cluster.controller.core import Controller, Parts, PlannerBeside
from cluster.controller.database import NAME, FleetDatabase
from cluster.controller.history import FleetHistory
from cluster.controller.http import make_app
from cluster.controller.lease import OF_FLEET, LeaseKeeper, LeaseStore, LeaseTimes
from cluster.controller.link import MqttLink
from cluster.controller.live import FleetActions, LiveServices
from cluster.controller.membership import Membership
from cluster.controller.on_engine import Carrier
from cluster.controller.outside import engine_told, lease_told, open_fleet_engine, open_leases
from cluster.controller.parcels import Parcels
from cluster.controller.round import RoundRules
from cluster.controller.server import FleetServer, tls_context
from cluster.controller.services import EngineStatus
from cluster.controller.store import FleetStore
from configs.errors import DriftboxError
from configs.files import atomic_write
from configs.schema import ControllerConfig, MqttSection
from configs.schema.box import WebSection
from edge.clock import Clock, SystemClock
from edge.store.accounts import AccountStore
from edge.store.store import Store
from edge.web.accounts.book import Accounts
from edge.web.accounts.local import write_local_token
from edge.web.hosts import host_names, is_loopback
from edge.web.tls import own_names

log = logging.getLogger("driftbox")

DEFAULT_PORT, DEFAULT_BROKER_PORT = 8470, 8883
#: Longest sleep between two steps, when nobody wakes the controller; and how much of a core it may take by stepping again and again.
TICK_S, LOAD_FRAC = 0.25, 0.5
#: In the data folder: for commands that show it.
URL_FILE = "url"
#: Between two looks at who was sent away (by a command beside this process; one of our own is acted on at once), and between two
#: times that a controller writes down how it is.
LOOK_AFTER_S, TELL_S = 1.0, 5.0
#: A step that takes longer is taken to hang: the lease is not renewed for it any more, so that a stand-by can take over.
HANGS_S = 120.0
SWEEP_S = 600.0


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """names: under which boxes reach the controller, the first one is told to them; broker: one that is given, None: our own at
    broker_port; its address for boxes is broker's host (own: the first name); objective: Cilantro's (`cluster.cilantro.policies`);
    config: the lease and the engine; lease_times: other ones than the configuration's."""

    data_dir: Path
    host: str = "0.0.0.0"
    port: int = DEFAULT_PORT
    names: tuple[str, ...] = ()
    broker: MqttSection | None = None
    broker_port: int = DEFAULT_BROKER_PORT
    prefix: str = "driftbox"
    objective: Objective = "njc"
    round_s: float = 120.0
    report_every_s: float = 5.0
    login: bool = True
    rules: RoundRules = field(default_factory=RoundRules)
    config: ControllerConfig = field(default_factory=ControllerConfig)
    lease_times: LeaseTimes | None = None


class FleetFolder:
    """What lies in the data folder, opened: for a controller, or for commands beside it."""

    def __init__(self, data_dir: Path, clock: Clock, *, beside: bool = False) -> None:
        """beside: for a command, while a controller may run on it."""
        self.data_dir, self.clock = data_dir, clock
        self.db = FleetDatabase(data_dir / NAME)
        try:
            self.authority = Authority(data_dir / "ca", now_utc_s=clock.utc_s())
            self.parcels = Parcels(data_dir, beside=beside)
        except BaseException:
            self.db.close()
            raise
        self.membership = Membership(self.db, self.authority)
        self.store, self.history = FleetStore(self.db), FleetHistory(self.db)

    def close(self) -> None:
        self.db.close()

    def url(self) -> str:
        """Where the controller in charge is reached, else the one that started last; a placeholder before any has."""
        running = self.store.controllers(self.clock.utc_s())
        if running and running[0].status.in_charge:
            return running[0].status.url
        try:
            return (self.data_dir / URL_FILE).read_text(encoding="utf-8").strip()
        except OSError:
            return "https://CONTROLLER:8470"

    def actions(self) -> FleetActions:
        """For a command: the newest state is the one that was written down last."""
        return FleetActions(
            self.db,
            self.membership,
            self.parcels,
            known=self.store.known,
            utc_s=self.clock.utc_s,
            url=self.url(),
        )


class RunningController:
    """Everything of one process. `start` raises EnvironmentLacking or StorageError for what is missing or cannot work; `stop` gives the
    lease back."""

    def __init__(
        self, options: ServeOptions, *, say: Callable[[str], None], clock: Clock | None = None, leases: LeaseStore | None = None
    ) -> None:
        """leases: where the lease is, None: where the configuration says."""
        self.options, self._say, self._clock = options, say, clock or SystemClock()
        self._leases, self._stack = leases, ExitStack()
        self._wake, self._care, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._blocked: frozenset[str] = frozenset()
        self._broker: FleetBroker | None = None
        self._carrier: Carrier | None = None
        self._threads: list[threading.Thread] = []
        self._began_s = self._clock.monotonic_s()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with ExitStack() as stack:
            self._put_together(stack)
            self._stack = stack.pop_all()
        for name, work in (("fleet", self._run), ("fleet-care", self._look_after), ("fleet-lease", self._keep_lease)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._ended.set()
        self._wake_up()
        for thread in self._threads:
            thread.join(20.0)
        self._stack.close()

    def _put_together(self, stack: ExitStack) -> None:
        options, clock = self.options, self._clock
        self.folder = FleetFolder(options.data_dir, clock)
        stack.callback(self.folder.close)
        self.server = FleetServer(options.host, options.port)
        stack.callback(self.server.stop)
        names, addresses = own_names(WebSection(hostnames=tuple(n for n in options.names if not n.replace(".", "").isdigit())))
        here = (options.host,) if is_loopback(options.host) else ()  # nobody elsewhere could reach it under another address
        reached = options.names or here or (
            *sorted(str(a) for a in addresses if a.version == 4 and not is_loopback(str(a))),
            "localhost",
        )  # fmt: skip
        self.url = f"https://{reached[0]}:{self.server.port}"
        atomic_write(options.data_dir / URL_FILE, f"{self.url}\n".encode())
        self._names = (*names, *map(str, addresses), *options.names)
        self.folder.authority.server(self._names, now_utc_s=clock.utc_s())
        leases = self._leases or open_leases(options.config, self.folder.db, clock.utc_s, clock.monotonic_s)
        engine = open_fleet_engine(options.config)
        if engine is not None:
            stack.callback(engine.close)
        mqtt, broker = self._with_broker(stack, reached[0])
        self.link = MqttLink(mqtt, f"driftbox-fleet-{secrets.token_hex(4)}", wake=self._wake.set)
        keeper = LeaseKeeper(
            leases, secrets.token_hex(6), clock.monotonic_s,
            times=options.lease_times or LeaseTimes.of(options.config.lease.lasts_s),
            note=f"{self.url}{OF_FLEET}{self.folder.authority.fingerprint[:12]}",
        )  # fmt: skip
        stack.callback(keeper.give)
        rules = replace(
            options.rules, round_s=options.round_s,
            cilantro=replace(options.rules.cilantro, policy=Settings(objective=options.objective)),
        )  # fmt: skip
        planner = PlannerBeside()
        stack.callback(planner.close)
        self.controller = Controller(
            Parts(
                planner=planner,
                store=self.folder.store, lease=keeper, link=self.link, utc_s=clock.utc_s, monotonic_s=clock.monotonic_s,
                parcels=self.folder.parcels.ids, blocked=lambda: self._blocked, rules=rules, url=self.url,
                broker=f"{broker['host']}:{broker['port']}", lease_told=lease_told(options.config), engine=self._engine_status,
            )
        )  # fmt: skip
        self._keeper = keeper
        if engine is not None:
            self._carrier = Carrier(
                engine, engine_told(options.config), state=self.controller.state, holds=self.controller.holds,
                patience=rules.placement.handoff.patience, monotonic_s=clock.monotonic_s, utc_s=clock.utc_s,
            )  # fmt: skip
        self._serve(stack, broker)
        self.link.start()
        stack.callback(self.link.stop)
        keeper.begin()
        if options.config.lease.store != "file":
            self._say(
                f"the lease is in {lease_told(options.config)}, which carries no data: a stand-by elsewhere needs a copy of"
                f" {options.data_dir}, ca/ included; what was decided since the copy was made is lost when it takes over"
            )
        if self._carrier is not None:
            self._carrier.start()
            stack.callback(self._carrier.stop)
        stack.callback(self._gone)

    def _engine_status(self) -> EngineStatus:
        return self._carrier.status() if self._carrier is not None else EngineStatus()

    def _wake_up(self) -> None:
        """Something was wished that neither the controller nor who looks after members should wait with."""
        self._wake.set()
        self._care.set()

    def _with_broker(self, stack: ExitStack, host: str) -> tuple[MqttSection, dict[str, object]]:
        """(how the controller reaches it, what boxes are told of it)."""
        options = self.options
        if options.broker is not None:
            given = self._proven(options.broker)
            return given, {"host": given.host, "port": given.port, "tls": given.tls}
        authority, folder = self.folder.authority, options.data_dir / "broker"
        self._broker = FleetBroker(authority, folder, host=options.host, port=options.broker_port, prefix=options.prefix)
        self._broker.refuse(self.folder.membership.revoked())
        self._broker.start()
        stack.callback(self._broker.stop)
        return self._broker.reached_by(), {"host": host, "port": options.broker_port, "tls": True}

    def _proven(self, given: MqttSection) -> MqttSection:
        """A given broker with TLS is checked by the fleet's authority, and shown a certificate of it, unless it is said otherwise."""
        if not given.tls:
            return given
        more: dict[str, Path] = {} if given.ca_file is not None else {"ca_file": self.folder.authority.cert_file}
        if given.cert_file is None and given.username is None:
            cert, key = self.folder.authority.client(now_utc_s=self._clock.utc_s())
            more |= {"cert_file": cert, "key_file": key}
        return given.model_copy(update=more)

    def _serve(self, stack: ExitStack, broker: dict[str, object]) -> None:
        options, folder = self.options, self.folder
        actions = FleetActions(
            folder.db, folder.membership, folder.parcels, known=self.controller.known, utc_s=self._clock.utc_s,
            wake=self._wake_up, url=self.url,
        )  # fmt: skip
        self.services = LiveServices(self.controller, actions, folder.history, folder.membership)
        prefix = options.broker.prefix if options.broker is not None else options.prefix
        house = Gatehouse(
            membership=folder.membership, parcels=folder.parcels, broker=broker, prefix=prefix, url=self.url,
            utc_s=self._clock.utc_s, in_charge=self._charge, report_every_s=options.report_every_s, wake=self._wake_up,
        )  # fmt: skip
        accounts = self._accounts(stack) if options.login else None
        app = make_app(self.services, accounts=accounts, hosts=host_names(options.names), boxes=make_box_app(house))
        self._tls = tls_context(folder.authority.server_cert_file, folder.authority.server_key_file, folder.authority.pem)
        self.server.start(app, self._tls)
        self._say(f"fleet view: {self.url}/")
        if accounts is not None:
            code = accounts.first_code()
            if code is not None:
                self._say(f"claim code: {code} (shown this once; open the page and make the first account with it)")

    def _accounts(self, stack: ExitStack) -> Accounts:
        (self.options.data_dir / "web").mkdir(mode=0o700, parents=True, exist_ok=True)
        store = Store(self.options.data_dir / "accounts.db")
        stack.callback(store.close)
        return Accounts(AccountStore(store), self._clock, local=write_local_token(self.options.data_dir))

    def _charge(self) -> tuple[bool, str]:
        status = self.controller.status()
        return status.in_charge, status.reason

    # --- threads ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        said = ""
        while not self._ended.is_set():
            self._wake.clear()
            self._began_s = began_s = self._clock.monotonic_s()
            try:
                self.controller.step()
                said = ""
            except DriftboxError as error:
                if error.message != said:
                    log.error("the controller cannot work: %s (%s)", error.message, error.remedy)
                said = error.message
                self._ended.wait(1.0)
            except Exception:
                # A mistake of ours must not leave a fleet without a controller: nothing was written or told, the next step begins anew.
                log.exception("a step of the controller failed")
                self._ended.wait(5.0)
            took_s = self._clock.monotonic_s() - began_s
            self._ended.wait(took_s * (1.0 / LOAD_FRAC - 1.0))
            self._wake.wait(TICK_S)
        self._keeper.give()

    def _keep_lease(self) -> None:
        """In a large fleet a round may take longer than the lease is good."""
        while not self._ended.wait(min(1.0, self._keeper.times.renew_s)):
            if self._keeper.holds() and self._clock.monotonic_s() - self._began_s < HANGS_S:
                self._keeper.look()

    def _look_after(self) -> None:
        """What is not the controller's own work: revoked certificates, old parcels, the own certificate."""
        swept_s = told_s = float("-inf")
        while not self._ended.is_set():
            self._care.clear()
            now_s = self._clock.monotonic_s()
            try:
                self._look_at_members()
                if now_s - told_s >= TELL_S:
                    told_s = now_s
                    self.folder.store.tell_controller(self.controller.status())
                if now_s - swept_s > SWEEP_S:
                    swept_s = now_s
                    self._sweep()
            except DriftboxError as error:
                log.warning("%s", error.message)
            self._care.wait(LOOK_AFTER_S)

    def _gone(self) -> None:
        with suppress(DriftboxError):
            self.folder.store.forget_controller(self._keeper.id)

    def _look_at_members(self) -> None:
        self._blocked = frozenset(row.box for row in self.folder.membership.members() if row.revoked)
        if self._broker is not None:
            self._broker.refuse(self.folder.membership.revoked())

    def _sweep(self) -> None:
        now_s, authority = self._clock.utc_s(), self.folder.authority
        if authority.server(self._names, now_utc_s=now_s):
            self._tls.load_cert_chain(authority.server_cert_file, authority.server_key_file)
            # The own broker looks at the files by itself: connections that stand go on, new ones meet the new certificate.
            log.info("the controller's certificate was made anew")
        if not self._charge()[0]:
            return
        state = self.controller.state()
        needed = {lease.parcel for lease in state.leases.values()} | {lease.standby_parcel for lease in state.leases.values()}
        needed |= {handoff.parcel for handoff in state.handoffs.values()}
        needed |= {offer.parcel for offers in state.offers.values() for offer in offers}
        bundles = {rollout.parcel for rollout in state.rollouts.values()}
        self.folder.parcels.sweep(needed=needed, bundles=bundles, now_utc_s=now_s)
