"""Section `models`: which networks run, label and retrain."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.retraining import CatalogEntry, RetrainEntry, check_unique
from configs.schema.tasks import SHIPPED, TaskModels, checked_task
from configs.tasks import DETECTION
from configs.units import class_map_problem


def _default_retrain() -> tuple[RetrainEntry, ...]:
    """Cheap, middle and thorough; long and short versions share their profiling trial (same family, other epochs)."""
    return (
        RetrainEntry(name="head", epochs=4, layers_frac=0.4),
        RetrainEntry(name="full-short", epochs=4),
        RetrainEntry(name="full-long", epochs=12),
    )


class ModelsSection(Section):
    """Edge model, golden model, and the ways to retrain."""

    edge: str = setting(
        "tinydet-edge", text="Model that watches the cameras: a known name (`driftbox models list`) or a weights file."
    )
    golden: str = setting("tinydet-golden", text="Large model that labels the samples: a known name or a weights file.")
    tasks: dict[str, TaskModels] = setting(
        default_factory=dict,
        default_text="classification: mobilenetv2",
        text="Models per task, for cameras whose `task` is not detection.",
    )
    golden_score_min: float = setting(0.4, unit="score", ge=0, le=1, text="Golden detections below this score are not labels.")
    golden_batch: int = setting(
        8, unit="frames", ge=1, le=256,
        text="Frames that the golden model sees at once where a GPU makes that cheaper; on a CPU always one, so that it yields.",
    )  # fmt: skip
    class_map: dict[str, str] = setting(
        default_factory=dict,
        default_text="none",
        text="What golden labels of a class become: `truck: car`, or `animal: ignore` for no label at all.",
    )
    agreement: Literal["off", "flip"] = setting(
        "off",
        text="`flip`: the golden model also sees the mirrored frame, and only what it finds in both is a label; costs a second pass.",
    )
    unsure_max_frac: float = setting(
        0.5, unit="fraction", ge=0, le=1,
        text="With `agreement`: a frame whose unsure part of all boxes is larger is left out of training and judging.",
    )  # fmt: skip
    serving: Literal[
        "auto",
        "trained",
        "torch-compiled",
        "torch-graph-fp16",
        "onnxruntime",
        "onnxruntime-int8",
        "openvino",
        "openvino-bf16",
        "openvino-int8",
        "tensorrt",
        "tensorrt-fp16",
    ] = setting(
        "auto",
        text="Form in which edge models serve frames: `auto` measures once what is fastest here and agrees with the trained model.",
    )
    serving_build_s: float = setting(
        180.0,
        unit="s",
        ge=1,
        le=3600,
        text="Longest that making and checking a serving form may take; then the model serves as it was trained.",
    )
    golden_serving: Literal["auto", "trained", "openvino", "openvino-bf16"] = setting(
        "auto",
        text="Form in which the golden model labels on a processor: `auto` measures once what is fastest here and says what the model "
        "as trained says; the forms differ from it by rounding only. On a GPU, and where jobs have processes of their own, it labels "
        "as trained.",
    )
    edge_score_min: float = setting(
        0.25, unit="score", ge=0, le=1, text="Edge detections below this score are not shown or counted."
    )
    iou_min: float = setting(
        0.3, unit="IoU", ge=0.1, le=0.95, text="Overlap from which a detection counts as right (0.3 in the Ekya paper)."
    )
    weights_dir: Path | None = setting(
        None,
        text="Folder with weights files, searched before the cache; also given by `DRIFTBOX_WEIGHTS`.",
        default_text="none",
    )
    retrain: tuple[RetrainEntry, ...] = setting(
        default_factory=_default_retrain,
        default_text="`head`, `full-short`, `full-long`",
        text="Retraining configurations to choose from, for models that `catalog` does not name.",
    )
    catalog: dict[str, CatalogEntry] = setting(
        default_factory=dict,
        default_text="the one that comes with Driftbox (configs/catalog.yaml)",
        text="Retraining configurations per model: its name (`yolov8n`, `yolov8n@320`) or weights file.",
    )

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, tasks: dict[str, TaskModels]) -> dict[str, TaskModels]:
        for name in tasks:
            if checked_task(name) == DETECTION:
                raise PydanticCustomError("task", "detection's models are models.edge and models.golden")
        return tasks

    @field_validator("class_map")
    @classmethod
    def _known_classes(cls, mapping: dict[str, str]) -> dict[str, str]:
        problem = class_map_problem(mapping)
        if problem:
            raise PydanticCustomError("class_map", "{problem}", {"problem": problem})
        return mapping

    @field_validator("retrain")
    @classmethod
    def _unique(cls, entries: tuple[RetrainEntry, ...]) -> tuple[RetrainEntry, ...]:
        if not entries:
            raise PydanticCustomError(
                "empty", "needs at least one entry (use scheduler.policy: no-retrain to switch retraining off)"
            )
        check_unique(entries)
        return entries

    def for_task(self, task: str) -> TaskModels:
        """The edge and golden model of a task: what stands under `tasks`, else what comes with Driftbox, else those of detection."""
        entry = self.tasks.get(task) or SHIPPED.get(task) or TaskModels(edge=self.edge)
        return entry if entry.golden else TaskModels(edge=entry.edge, golden=self.golden)
