"""The configuration of a box as frozen types. `configs.load.load_config` reads it from YAML."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.box import BoxSection, GpusSection, StorageSection, WebSection
from configs.schema.cameras import CameraEntry
from configs.schema.crosscheck import cross_problems
from configs.schema.fleet import ControllerConfig, FleetSection
from configs.schema.models import ModelsSection, RetrainEntry
from configs.schema.planning import SchedulerSection, WindowSection
from configs.schema.secret import CameraUrl, Secret
from configs.schema.telemetry import MqttSection, TelemetrySection

__all__ = [
    "BoxConfig",
    "BoxSection",
    "CameraEntry",
    "CameraUrl",
    "ControllerConfig",
    "FleetSection",
    "GpusSection",
    "ModelsSection",
    "MqttSection",
    "RetrainEntry",
    "SchedulerSection",
    "Secret",
    "StorageSection",
    "TelemetrySection",
    "WebSection",
    "WindowSection",
]

#: Error type of a broken rule that joins sections; `configs.load` reports these itself, with their paths.
CROSS_SECTION = "cross_section"


class BoxConfig(Section):
    """All of it. Everything but `cameras` may be left out."""

    box: BoxSection = setting(default_factory=BoxSection, text="Who this box is and where it keeps its data.")
    gpus: GpusSection = setting(default_factory=GpusSection, text="The compute that inference and retraining share.")
    window: WindowSection = setting(default_factory=WindowSection, text="The retraining window.")
    scheduler: SchedulerSection = setting(default_factory=SchedulerSection, text="How a window is planned.")
    models: ModelsSection = setting(default_factory=ModelsSection, text="Which networks run, label and retrain.")
    cameras: tuple[CameraEntry, ...] = setting((), text="What the box watches.")
    telemetry: TelemetrySection = setting(default_factory=TelemetrySection, text="What the box tells other systems.")
    web: WebSection = setting(default_factory=WebSection, text="The status page.")
    storage: StorageSection = setting(default_factory=StorageSection, text="How much of the disk the box may use.")
    fleet: FleetSection = setting(default_factory=FleetSection, text="The box as a member of a fleet.")

    @model_validator(mode="after")
    def _rules_across_sections(self) -> Self:
        problems = cross_problems(self.model_dump(include={"cameras", "gpus", "scheduler", "window"}))
        if problems:
            raise PydanticCustomError(CROSS_SECTION, "{problems}", {"problems": "; ".join(f"{p}: {t}" for p, t in problems)})
        return self

    @property
    def active_cameras(self) -> tuple[CameraEntry, ...]:
        """The cameras that are to be watched."""
        return tuple(camera for camera in self.cameras if camera.enabled)
