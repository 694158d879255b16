"""What the configuration says about labels reaches the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import load_config
from configs.units import CLASSES
from edge.wiring.settings import labelling_of
from models.golden import IGNORED, Labelling

CAMERA = "cameras:\n  - {id: a, url: 'rendered:street?seed=1'}\n"


def config_of(tmp_path: Path, models: str):  # type: ignore[no-untyped-def]
    file = tmp_path / "box.yaml"
    file.write_text(f"models: {models}\n{CAMERA}")
    return load_config(file)


def test_labels_are_plain_unless_configured(tmp_path: Path) -> None:
    assert labelling_of(config_of(tmp_path, "{}")) == Labelling()


def test_every_setting_reaches_the_jobs(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, "{class_map: {truck: car, animal: ignore}, agreement: flip, unsure_max_frac: 0.3, golden_batch: 4}"
    )
    labelling = labelling_of(config)
    assert (labelling.agreement, labelling.unsure_max_frac, labelling.views) == ("flip", 0.3, 2)
    assert labelling.classes[CLASSES.index("truck")] == CLASSES.index("car")
    assert labelling.classes[CLASSES.index("animal")] == IGNORED
    assert labelling.batch == 1, "on a CPU an iteration is one picture"
    assert labelling_of(config, on_gpu=True).batch == 4


@pytest.mark.parametrize("mapping", ["{lorry: car}", "{truck: van}", "{truck: car, car: bus}", "{truck: 5}", "[truck]"])
def test_a_class_map_that_cannot_be_is_refused_by_its_path(tmp_path: Path, mapping: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, f"{{class_map: {mapping}}}")
    assert any(path.startswith("models.class_map") for path, _ in caught.value.problems)


@pytest.mark.parametrize("text", ["{agreement: maybe}", "{unsure_max_frac: 1.5}", "{golden_batch: 0}"])
def test_other_settings_out_of_range_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        config_of(tmp_path, text)
