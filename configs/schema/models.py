"""Section `models`: which networks run, label and retrain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting


class RetrainEntry(Section):
    """One retraining configuration to try (Ekya's gamma); the same fields as `scheduler.types.RetrainConfig`."""

    name: str = setting(..., text="Name shown in plans; unique in the list.", example="head", max_length=40)
    epochs: int = setting(5, unit="epochs", ge=1, le=200, text="Passes over the training part of the labels.")
    batch: int = setting(8, unit="frames", ge=1, le=256, text="Frames per optimiser step.")
    layers_frac: float = setting(
        1.0, unit="fraction", gt=0, le=1, text="Part of the layers that train, counted from the output."
    )
    data_frac: float = setting(1.0, unit="fraction", gt=0, le=1, text="Part of the training labels that is used.")
    lr: float = setting(1e-3, unit="per step", gt=0, le=1, text="Learning rate.")
    replay_frac: float = setting(0.0, unit="fraction", ge=0, le=0.9, text="Part of each batch drawn from earlier windows.")


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
        text="Retraining configurations to choose from.",
    )

    @field_validator("retrain")
    @classmethod
    def _unique(cls, entries: tuple[RetrainEntry, ...]) -> tuple[RetrainEntry, ...]:
        twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
        if twice:
            raise PydanticCustomError("twice", "two entries have the name {name}", {"name": ", ".join(twice)})
        if not entries:
            raise PydanticCustomError(
                "empty", "needs at least one entry (use scheduler.policy: no-retrain to switch retraining off)"
            )
        return entries
