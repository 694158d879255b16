"""What the web interface is made of beside the status: each part is optional, and its routes exist only when it is there.

A part brings a function `xyz_routes(part) -> APIRouter` in `edge/api_xyz.py`; `edge.api.make_app` includes it. Only `edge.wiring` knows
the concrete classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.cameras.desk import CameraDesk
from edge.control import BoxControl
from edge.events import EventLibrary
from edge.fleet.view import FleetSource
from edge.gpu_view import GpuSource
from edge.health import HealthSource
from edge.labels import LabelStore
from edge.learning import LearningSource
from edge.metrics import MetricsSource
from edge.models_view import ModelShelf
from edge.queries_view import QueriesSource
from edge.settings import SettingsSource
from edge.web.accounts.book import Accounts
from edge.web.hosts import HostNames
from edge.web.live import LiveFeed
from edge.why import WhySource


@dataclass(frozen=True, kw_only=True)
class Services:
    """accounts: who may ask (None: everybody may look, and only this machine writes); hosts: the names the box answers to (None: any);
    live: what viewers are told as it happens (None: the status only); labels: samples and their labels; control: what can be changed
    on the running box; settings: the configuration in force."""

    accounts: Accounts | None = None
    hosts: HostNames | None = None
    live: LiveFeed | None = None
    labels: LabelStore | None = None
    control: BoxControl | None = None
    cameras: CameraDesk | None = None
    settings: SettingsSource | None = None
    #: What models have learned; why plans are as they are; how compute is shared; versions; what is asked of cameras.
    learning: LearningSource | None = None
    why: WhySource | None = None
    gpu: GpuSource | None = None
    models: ModelShelf | None = None
    queries: QueriesSource | None = None
    #: How the box is, and what Prometheus is told of it.
    health: HealthSource | None = None
    metrics: MetricsSource | None = None
    #: The box as a member of its fleet.
    fleet: FleetSource | None = None
    #: Tracked objects with their snapshots and clips.
    events: EventLibrary | None = None
