"""Which retraining configurations a camera's model may choose from: the user's catalogue, the user's list, or ours.

`configs/catalog.yaml` comes with Driftbox: measured defaults for the built-in models (docs/retraining.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from configs.schema.models import ModelsSection
from configs.schema.retraining import CatalogEntry, RetrainEntry


@cache
def shipped_catalog() -> Mapping[str, CatalogEntry]:
    """Model name -> its configurations."""
    data = yaml.safe_load(Path(__file__).with_name("catalog.yaml").read_text(encoding="utf-8"))
    return {name: CatalogEntry.model_validate(entry) for name, entry in data.items()}


def retrain_of(models: ModelsSection, model: str) -> tuple[RetrainEntry, ...]:
    """The configurations of `model` (a name, `name@pixels` or a weights file), in this order of precedence: `models.catalog`,
    `models.retrain` where it is written, the catalogue that comes with Driftbox, the default of `models.retrain`. In a catalogue
    `yolov8n@320` goes before `yolov8n`."""
    own = _found(models.catalog, model)
    if own is None and "retrain" not in models.model_fields_set:
        own = _found(shipped_catalog(), model)
    return own.configs() if own is not None else models.retrain


def _found(catalog: Mapping[str, CatalogEntry], model: str) -> CatalogEntry | None:
    name, at, size = model.rpartition("@")
    return catalog.get(model) or catalog.get(name if at and size.isdigit() else model)
