"""Section `models`: which networks run, label and retrain."""

from __future__ import annotations

from pathlib import Path

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.retraining import CatalogEntry, RetrainEntry, check_unique


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
    golden_score_min: float = setting(0.4, unit="score", ge=0, le=1, text="Golden detections below this score are not labels.")
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

    @field_validator("retrain")
    @classmethod
    def _unique(cls, entries: tuple[RetrainEntry, ...]) -> tuple[RetrainEntry, ...]:
        if not entries:
            raise PydanticCustomError(
                "empty", "needs at least one entry (use scheduler.policy: no-retrain to switch retraining off)"
            )
        check_unique(entries)
        return entries
