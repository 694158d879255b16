"""Retraining configurations in YAML: catalogues per model, grids, generated names, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from configs.catalog import retrain_of, shipped_catalog
from configs.errors import ConfigError
from configs.load import parse_config
from configs.schema.retraining import KNOBS, MAX_CONFIGS, MAX_NAME, CatalogEntry, RetrainEntry, RetrainGrid, grid_name
from scheduler.types import RetrainConfig

PARTS = st.integers(1, 1000).map(lambda n: n / 1000)
VALUES = {
    "epochs": st.integers(1, 200), "batch": st.integers(1, 256), "layers_frac": PARTS, "data_frac": PARTS, "lr": PARTS,
    "replay_frac": PARTS.map(lambda v: round(0.9 * v, 4)), "head_neurons": st.integers(0, 4096),
    "distill": PARTS.map(lambda v: round(100 * v, 1)), "balance": st.booleans(),
}  # fmt: skip
GRIDS = st.lists(st.sampled_from(KNOBS), unique=True, min_size=1, max_size=4).flatmap(
    lambda knobs: st.fixed_dictionaries({knob: st.lists(VALUES[knob], unique=True, min_size=1, max_size=2) for knob in knobs})
)


def names(yaml: str, model: str) -> list[str]:
    return [entry.name for entry in retrain_of(parse_config(f"cameras: []\n{yaml}").models, model)]


def problems(catalog: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"models: {{catalog: {catalog}}}")
    return dict(caught.value.problems)


def test_an_entry_has_the_fields_of_a_configuration() -> None:
    assert {f.name: f.default for f in fields(RetrainConfig) if f.name != "name"} == {
        knob: RetrainEntry.model_fields[knob].default for knob in KNOBS
    }
    assert set(RetrainGrid.model_fields) == set(KNOBS)


def test_a_grid_spans_the_product_of_its_values() -> None:
    grid = RetrainGrid(epochs=(5, 15), layers_frac=(0.5, 1.0), lr=(3e-4,), balance=(False,))
    assert [entry.name for entry in grid.configs()] == [
        "e5-l50-lr3e-4-nobal", "e5-l100-lr3e-4-nobal", "e15-l50-lr3e-4-nobal", "e15-l100-lr3e-4-nobal",
    ]  # fmt: skip
    assert {(e.epochs, e.layers_frac, e.lr, e.batch) for e in grid.configs()} == {
        (epochs, layers, 3e-4, 8) for epochs, layers in itertools.product((5, 15), (0.5, 1.0))
    }


def test_the_cards_eighteen_configurations_are_three_lines() -> None:
    """Ekya: {last layers, 64 neurons | all layers, 1024 neurons} x data {.1, .5, 1} x epochs {5, 15, 30}."""
    entry = CatalogEntry.model_validate(
        {"grid": {"epochs": (5, 15, 30), "data_frac": (0.1, 0.5, 1.0), "head_neurons": (64, 1024)}}
    )
    assert len(entry.configs()) == 18
    assert entry.configs()[0].name == "e5-d10-h64"


@given(GRIDS)
def test_names_are_unique_short_and_say_the_values(grid: dict[str, list[float]]) -> None:
    entries = RetrainGrid.model_validate({knob: tuple(values) for knob, values in grid.items()}).configs()
    assert len({e.name for e in entries}) == len(entries) == len({e.knobs() for e in entries})
    for entry in entries:
        written = {knob: getattr(entry, knob) for knob in KNOBS if knob in grid}
        assert entry.name == grid_name(written)


@given(st.data())
def test_a_value_more_renames_nothing(data: st.DataObject) -> None:
    grid = data.draw(GRIDS)
    grid = {"epochs": [3], **{k: v for k, v in grid.items() if k != "balance"}}
    knob = data.draw(st.sampled_from(sorted(grid)))
    before = RetrainGrid.model_validate({k: tuple(v) for k, v in grid.items()}).configs()
    more = data.draw(VALUES[knob].filter(lambda v: v not in grid[knob]))
    wider = {**grid, knob: [*grid[knob], more]}
    after = RetrainGrid.model_validate({k: tuple(v) for k, v in wider.items()}).configs()
    assert {e.name: e.knobs() for e in before}.items() <= {e.name: e.knobs() for e in after}.items()


@pytest.mark.parametrize(
    ("catalog", "path", "words"),
    [
        ("{yolov8n: {grid: {epochs: [5, 5]}}}", "models.catalog.yolov8n.grid.epochs", "has 5 twice"),
        ("{yolov8n: {grid: {epochs: [5, 500]}}}", "models.catalog.yolov8n.grid.epochs", "1 to 200 epochs, not 500"),
        ("{yolov8n: {grid: {layers_frac: [0]}}}", "models.catalog.yolov8n.grid.layers_frac", "above 0, at most 1"),
        ("{yolov8n: {grid: {epochs: ['7']}}}", "models.catalog.yolov8n.grid.epochs[0]", "must be a whole number"),
        ("{yolov8n: {grid: {balance: [1]}}}", "models.catalog.yolov8n.grid.balance[0]", "must be true or false"),
        ("{yolov8n: {grid: {epochs: []}}}", "models.catalog.yolov8n.grid", "epochs needs at least one value"),
        ("{yolov8n: {grid: {epoch: [1]}}}", "models.catalog.yolov8n.grid.epoch", "did you mean 'epochs'?"),
        ("{a: {grid: {lr: [1.2345678901234567e-133], data_frac: [0.1234567890123456], layers_frac: [0.12345678901234567]}}}",
         "models.catalog.a.grid", "write rounder values"),
        ("{yolov8n: {gird: {}}}", "models.catalog.yolov8n.gird", "did you mean 'grid'?"),
        ("{yolov8n: {}}", "models.catalog.yolov8n", "at least one configuration"),
        ("{yolov8n: 7}", "models.catalog.yolov8n", "must be a section"),
        ("[7]", "models.catalog", "must be a section"),
        ("{yolov8n: {retrain: [{name: a, lr: 2}]}}", "models.catalog.yolov8n.retrain[0].lr", "above 0, at most 1"),
        ("{a: {retrain: [{name: x}, {name: x, epochs: 3}]}}", "models.catalog.a", "two entries have the name x"),
        ("{a: {retrain: [{name: x}, {name: y}]}}", "models.catalog.a", "x and y are the same configuration"),
        ("{a: {retrain: [{name: e3, epochs: 4}], grid: {epochs: [3]}}}", "models.catalog.a", "two entries have the name e3"),
        ("{a: {retrain: [{name: x, epochs: 3}], grid: {epochs: [3]}}}", "models.catalog.a", "x and e3 are the same"),
        (f"{{a: {{grid: {{epochs: {list(range(1, 14))}, batch: [1, 2, 3, 4, 5]}}}}}}", "models.catalog.a.grid", "spans 65"),
    ],
)  # fmt: skip
def test_a_wrong_catalogue_is_refused_by_its_path(catalog: str, path: str, words: str) -> None:
    found = problems(catalog)
    assert path in found
    assert words in found[path]


def test_list_and_grid_together_are_bounded_too() -> None:
    listed = [RetrainEntry(name=f"n{i}", epochs=100 + i) for i in range(MAX_CONFIGS)]
    assert len(CatalogEntry(retrain=tuple(listed)).configs()) == MAX_CONFIGS
    with pytest.raises(ValidationError, match="65 configurations"):
        CatalogEntry(retrain=tuple(listed), grid=RetrainGrid(epochs=(3,)))


def test_the_most_specific_catalogue_wins_then_the_list_then_ours() -> None:
    own = (
        "catalog: {yolov8n: {grid: {epochs: [3]}}, yolov8n@320: {grid: {epochs: [4]}}, /data/my@home.pt: {grid: {epochs: [6]}}}"
    )
    listed = "retrain: [{name: mine}]"
    assert names(f"models: {{{own}, {listed}}}", "yolov8n@320") == ["e4"]
    assert names(f"models: {{{own}, {listed}}}", "yolov8n@640") == names(f"models: {{{own}}}", "yolov8n") == ["e3"]
    assert names(f"models: {{{own}}}", "/data/my@home.pt") == names(f"models: {{{own}}}", "/data/my@home.pt@480") == ["e6"]
    assert names(f"models: {{{own}, {listed}}}", "yolo26n") == ["mine"]
    ours = [e.name for e in shipped_catalog()["yolo26n"].configs()]
    assert names(f"models: {{{own}}}", "yolo26n@320") == names("", "yolo26n") == ours
    assert names("", "/data/other.pt") == ["head", "full-short", "full-long"]


def test_the_catalogue_that_comes_with_driftbox_is_sound() -> None:
    for model, entry in shipped_catalog().items():
        entries = entry.configs()
        assert 2 <= len(entries) <= 12, f"{model}: every family is profiled in every window"
        assert all(len(e.name) <= MAX_NAME for e in entries)
        assert entry.model_validate(entry.model_dump(exclude_unset=True)) == entry


def test_the_shipped_catalogue_names_every_edge_model_and_no_other() -> None:
    from models.zoo import EDGE, ZOO

    assert set(shipped_catalog()) == {arch for arch, entry in ZOO.items() if entry.role == EDGE}


def test_an_added_layer_is_shipped_for_classifiers_only() -> None:
    from models.zoo import is_classifier

    for model, entry in shipped_catalog().items():
        assert is_classifier(model) or not any(e.head_neurons for e in entry.configs()), model
