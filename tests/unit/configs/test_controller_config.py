"""The file of a fleet's controller: what it may say, what the command line says over it, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from configs.errors import ConfigError
from configs.load import load_controller
from configs.schema import ControllerConfig

DOCS = Path(__file__).parents[3] / "docs" / "fleet" / "controller.md"


def write(folder: Path, text: str) -> Path:
    file = folder / "fleet.yaml"
    file.write_text(text)
    return file


def test_nothing_said_is_the_lease_in_the_folder_and_placement_here() -> None:
    config = load_controller(None)
    assert (config.lease.store, config.lease.lasts_s, config.engine_in_force) == ("file", 15.0, "local")


def test_the_command_line_counts_more_than_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "lease:\n  store: ray\n  name: north\nray:\n  address: head:6379\n  token: env:RAY_TOKEN\n")
    config = load_controller(file)
    assert (config.lease.store, config.lease.name, config.ray.address) == ("ray", "north", "head:6379")
    assert "RAY_TOKEN" in repr(config), "a reference is shown"
    other = load_controller(file, {"lease": {"store": "kubernetes"}, "ray": {"address": "10.0.0.2:6380"}})
    assert (other.lease.store, other.lease.name, other.ray.address) == ("kubernetes", "north", "10.0.0.2:6380")


@pytest.mark.parametrize(
    ("text", "in_force"),
    [
        ("ray:\n  address: head:6379\n", "ray"), ("engine:\n  use: kubernetes\n", "kubernetes"),
        ("engine:\n  use: local\nray:\n  address: head:6379\n", "local"),
    ],
)  # fmt: skip
def test_ray_is_the_engine_where_there_is_one(tmp_path: Path, text: str, in_force: str) -> None:
    assert load_controller(write(tmp_path, text)).engine_in_force == in_force


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("lease:\n  store: zookeeper\n", "lease.store", "must be one of: file, ray, kubernetes, not 'zookeeper' (line 2)"),
        ("lease:\n  stor: ray\n", "lease.stor", "did you mean 'store'?"),
        ("lease:\n  lasts_s: 1\n", "lease.lasts_s", "must be 2 to 300 seconds, not 1 (line 2)"),
        ("lease:\n  name: No Spaces\n", "lease.name", "must begin with a lower case letter"),
        ("lease:\n  store: ray\n", "(file)", "ray.address must say where its head is"),
        ("engine:\n  use: ray\n", "(file)", "engine.use asks for a Ray cluster"),
        ("ray:\n  address: head\n", "ray.address", "must be HOST:PORT"),
        ("lease: ray\n", "lease", "must be a section with keys of its own"),
        ("cameras: []\n", "cameras", "unknown key; known keys: engine, kubernetes, lease, ray"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, where: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_controller(write(tmp_path, text))
    (problem,) = refused.value.problems
    assert problem[0] == where
    assert why in problem[1]
    assert "docs/fleet/controller.md" in refused.value.remedy


def test_a_token_is_shown_nowhere(tmp_path: Path) -> None:
    config = load_controller(write(tmp_path, "ray:\n  address: head:6379\n  token: s3cret\n"))
    assert "s3cret" not in repr(config) + str(config) + config.model_dump_json()
    with pytest.raises(ConfigError) as refused:
        load_controller(write(tmp_path, "ray:\n  address: 7\n  token: [s3cret]\n"))
    assert "s3cret" not in f"{refused.value} {refused.value.problems}"


def test_every_key_is_described() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for section, field in ControllerConfig.model_fields.items():
        for key in field.annotation.model_fields:  # type: ignore[union-attr]
            assert f"`{section}.{key}`" in text, f"docs/fleet/controller.md does not describe {section}.{key}"


def test_the_example_in_the_docs_is_a_configuration(tmp_path: Path) -> None:
    block = DOCS.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    config = load_controller(write(tmp_path, block))
    assert config.lease.store == "kubernetes"
    assert yaml.safe_load(block)["kubernetes"]["namespace"] == config.kubernetes.namespace
