"""How models may be retrained: single configurations, and per model a catalogue of them that a grid can span.

Ekya section 4.3 (papers/ekya.md section 5): the knobs are epochs, batch size, neurons of the added last layer, layers trained and data
fraction; learning rate, replay, distillation and class balance are ours. Every list of values in a grid is one axis; each point of
their product is one configuration, named after the knobs that the grid writes down.
"""

from __future__ import annotations

import itertools
from collections import Counter
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import Strict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, limits_of, setting

#: Most configurations of one model: each family of them is a profiling run in every window.
MAX_CONFIGS = 64
MAX_NAME = 60

_Int = Annotated[int, Strict()]
_Float = Annotated[float, Strict()]
_Bool = Annotated[bool, Strict()]


class RetrainEntry(Section):
    """One retraining configuration to try (Ekya's gamma); the same fields as `scheduler.types.RetrainConfig`."""

    name: str = setting(..., text="Name shown in plans; unique in the list.", example="head", max_length=MAX_NAME)
    epochs: int = setting(5, unit="epochs", ge=1, le=200, text="Passes over the training part of the labels.")
    batch: int = setting(8, unit="frames", ge=1, le=256, text="Frames per optimiser step.")
    layers_frac: float = setting(
        1.0, unit="fraction", gt=0, le=1, text="Part of the layers that train, counted from the output."
    )
    data_frac: float = setting(1.0, unit="fraction", gt=0, le=1, text="Part of the training labels that is used.")
    lr: float = setting(1e-3, unit="per step", gt=0, le=1, text="Learning rate.")
    replay_frac: float = setting(0.0, unit="fraction", ge=0, le=0.9, text="Part of each epoch drawn from earlier windows.")
    head_neurons: int = setting(
        0, unit="neurons", ge=0, le=4096, text="Width of a layer added before the output; 0: none. Classifiers only."
    )
    distill: float = setting(
        0.0,
        unit="weight",
        ge=0,
        le=100,
        text="Weight of staying close to the model it starts from, against forgetting; 0: off.",
    )
    balance: bool = setting(False, text="Show pictures with rare classes more often, so that every class counts alike.")

    def knobs(self) -> tuple[float, ...]:
        """Everything but the name."""
        return tuple(getattr(self, knob) for knob in KNOBS)


class RetrainGrid(Section):
    """Values per knob; every combination is a configuration, named after the knobs that are written here, e.g. `e5-l50-lr3e-4`
    (`l`, `d`, `r`: percent of layers, data, replay; `h`: neurons; `k`: distillation; `bal`: balance). At most 64 combinations."""

    epochs: tuple[_Int, ...] = setting((), text="Passes over the training part of the labels.", default_text="as in `retrain`")
    batch: tuple[_Int, ...] = setting((), text="Frames per optimiser step.", default_text="as in `retrain`")
    layers_frac: tuple[_Float, ...] = setting((), text="Parts of the layers that train.", default_text="as in `retrain`")
    data_frac: tuple[_Float, ...] = setting((), text="Parts of the training labels.", default_text="as in `retrain`")
    lr: tuple[_Float, ...] = setting((), text="Learning rates.", default_text="as in `retrain`")
    replay_frac: tuple[_Float, ...] = setting((), text="Parts from earlier windows.", default_text="as in `retrain`")
    head_neurons: tuple[_Int, ...] = setting((), text="Widths of the added layer.", default_text="as in `retrain`")
    distill: tuple[_Float, ...] = setting((), text="Weights of distillation.", default_text="as in `retrain`")
    balance: tuple[_Bool, ...] = setting((), text="Class balance off, on, or both.", default_text="as in `retrain`")

    @field_validator("*")
    @classmethod
    def _values(cls, values: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        knob = str(info.field_name)
        for value in values:
            try:
                RetrainEntry(name="x", **{knob: value})
            except ValidationError:
                raise PydanticCustomError("grid", "must be {allowed}, not {value}", _refused(knob, value)) from None
        twice = [str(value) for value, count in Counter(values).items() if count > 1]
        if twice:
            raise PydanticCustomError("twice", "has {value} twice", {"value": ", ".join(twice)})
        return values

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        empty = [knob for knob in KNOBS if knob in self.model_fields_set and not getattr(self, knob)]
        if empty:
            text = "{knob} needs at least one value (leave it out to keep its default)"
            raise PydanticCustomError("empty", text, {"knob": ", ".join(empty)})
        n = self.size
        if n > MAX_CONFIGS:
            text = "spans {n} configurations; at most {most} are allowed"
            raise PydanticCustomError("too_many", text, {"n": n, "most": MAX_CONFIGS})
        longest = max(map(grid_name, self._points()), key=len, default="")
        if len(longest) > MAX_NAME:
            text = "makes the name {name}, longer than {most} characters: write rounder values"
            raise PydanticCustomError("long", text, {"name": longest, "most": MAX_NAME})
        return self

    @property
    def _axes(self) -> dict[str, tuple[Any, ...]]:
        return {knob: values for knob in KNOBS if (values := getattr(self, knob))}

    @property
    def size(self) -> int:
        """How many configurations it spans; 0 when nothing is written in it."""
        n = 1
        for values in self._axes.values():
            n *= len(values)
        return n if self._axes else 0

    def configs(self) -> tuple[RetrainEntry, ...]:
        """The product, the last knob changing fastest. A name says all knobs that the grid writes, so that a value more in one of
        them renames nothing: what was learned about a configuration stays with it."""
        return tuple(RetrainEntry(name=grid_name(point), **point) for point in self._points())

    def _points(self) -> list[dict[str, Any]]:
        axes = self._axes
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []


class CatalogEntry(Section):
    """How one model may be retrained: configurations by name, a grid, or both."""

    retrain: tuple[RetrainEntry, ...] = setting((), text="Configurations by name.", default_text="none")
    grid: RetrainGrid = setting(default_factory=RetrainGrid, text="Configurations by their values.")

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        entries = self.configs()
        if not entries:
            raise PydanticCustomError("empty", "needs at least one configuration, under `retrain` or spanned by `grid`")
        if len(entries) > MAX_CONFIGS:
            text = "has {n} configurations; at most {most} are allowed"
            raise PydanticCustomError("too_many", text, {"n": len(entries), "most": MAX_CONFIGS})
        check_unique(entries)
        return self

    def configs(self) -> tuple[RetrainEntry, ...]:
        """All of them, those with names of their own first."""
        return (*self.retrain, *self.grid.configs())


KNOBS: tuple[str, ...] = tuple(name for name in RetrainEntry.model_fields if name != "name")

#: How a knob's value is written in a generated name.
_WRITTEN = {
    "epochs": lambda value: f"e{value}",
    "batch": lambda value: f"b{value}",
    "layers_frac": lambda value: f"l{_pct(value)}",
    "data_frac": lambda value: f"d{_pct(value)}",
    "lr": lambda value: f"lr{Decimal(repr(value)).normalize():e}",
    "replay_frac": lambda value: f"r{_pct(value)}",
    "head_neurons": lambda value: f"h{value}",
    "distill": lambda value: f"k{_plain(Decimal(repr(value)))}",
    "balance": lambda value: "bal" if value else "nobal",
}


def grid_name(point: dict[str, Any]) -> str:
    """{'epochs': 5, 'layers_frac': 0.5, 'lr': 3e-4} -> 'e5-l50-lr3e-4'. Different points have different names."""
    return "-".join(_WRITTEN[knob](value) for knob, value in point.items())


def check_unique(entries: tuple[RetrainEntry, ...]) -> None:
    """Raises PydanticCustomError for a name, or a configuration under two names, that stands twice."""
    names = Counter(entry.name for entry in entries)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise PydanticCustomError("twice", "two entries have the name {name}", {"name": ", ".join(twice)})
    first: dict[tuple[float, ...], str] = {}
    for entry in entries:
        same = first.setdefault(entry.knobs(), entry.name)
        if same != entry.name:
            text = "{one} and {other} are the same configuration"
            raise PydanticCustomError("same", text, {"one": same, "other": entry.name})


def _refused(knob: str, value: object) -> dict[str, Any]:
    field = RetrainEntry.model_fields[knob]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return {"allowed": f"{limits_of(field.metadata)} {extra.get('unit', '')}".strip(), "value": str(value)}


def _pct(frac: float) -> str:
    return _plain(Decimal(repr(frac)) * 100)


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"
