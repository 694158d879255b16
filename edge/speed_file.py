"""What `driftbox calibrate` measured, kept in the data folder as `speed.json`, and whether a plan may use it here.

A measurement belongs to a machine, a way of keeping shares and the models that ran. A box that finds another one's says so in a plain
sentence and goes on as if there were none.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from configs.errors import StorageError
from configs.files import atomic_write, storage_errors
from scheduler.ekya.estimate import speed_problems

NAME = "speed.json"

JobKind = Literal["inference", "labelling", "training"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MeasuredSpeed(_Part):
    """One measurement. throughput: iterations per second; beside: the job that ran with it, empty: none; received_pct: what the backend
    says it got; span_s: seconds between the first and the last iteration that count."""

    job: JobKind
    model: str
    beside: str = ""
    share_pct: float = Field(gt=0)
    throughput: float = Field(ge=0)
    received_pct: float = Field(ge=0)
    span_s: float = Field(ge=0)


class SpeedFile(_Part):
    """See `docs/sharing.md`. machine: what it runs on; devices: the GPUs by name, empty on a CPU; models: edge and golden models that
    were measured; speed: the curve for plans; known: how well; problem: why no plan may use it, empty: one may."""

    schema_version: Literal[1] = 1
    measured_utc: str
    machine: str
    devices: tuple[str, ...] = ()
    backend: str
    capacity_pct: int
    models: tuple[str, ...]
    quick: bool = False
    speed: tuple[tuple[float, float], ...]
    known: Literal["well", "roughly", "badly"]
    error_frac: float = Field(ge=0)
    problem: str = ""
    samples: tuple[MeasuredSpeed, ...] = ()

    @field_validator("speed")
    @classmethod
    def _is_a_curve(cls, speed: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        problems = speed_problems(speed)
        if problems or not speed:
            raise ValueError("; ".join(problems) or "there are no points")
        return speed


def write_speed(root: Path, found: SpeedFile) -> Path:
    """Replaces what was measured before. Raises StorageError."""
    path = root / NAME
    atomic_write(path, (found.model_dump_json(indent=1) + "\n").encode())
    return path


def read_speed(root: Path) -> SpeedFile | None:
    """What was measured, None: nothing. Raises StorageError ('newer', 'corrupt', or one of the disk)."""
    path = root / NAME
    with storage_errors(path):
        if not path.is_file():
            return None
        text = path.read_bytes()
    try:
        return SpeedFile.model_validate_json(text)
    except ValidationError as error:
        newer = any(part["loc"] == ("schema_version",) and part["type"] == "literal_error" for part in error.errors())
        first = error.errors()[0]
        what = "was written by another version of Driftbox" if newer else f"is damaged ({first['msg'].lower()})"
        raise StorageError(
            f"{path} {what}", subject=str(path), code="newer" if newer else "corrupt", remedy="run driftbox calibrate again"
        ) from None


def refusal(
    found: SpeedFile, *, machine: str, devices: Collection[str], backend: str, capacity_pct: int, models: Collection[str]
) -> str:
    """Why a box must not plan with a measurement, in words; empty: it may."""
    missing = sorted(set(models) - set(found.models))
    if found.machine != machine or sorted(found.devices) != sorted(devices):
        here, there = _named(machine, devices), _named(found.machine, found.devices)
        return f"it was made on another machine ({there}; this is {here})"
    if found.backend != backend:
        return f"it was made with gpus.backend {found.backend}, this box runs with {backend}"
    if found.speed[-1][0] < capacity_pct and found.speed[-1][0] < 100:
        return f"it reaches {found.speed[-1][0]:g} pct only"
    if missing:
        return f"it knows nothing of {', '.join(missing)}"
    return found.problem


def _named(machine: str, devices: Collection[str]) -> str:
    return f"{machine}, {', '.join(sorted(devices))}" if devices else machine


def usable_speed(
    root: Path, *, machine: str, devices: Collection[str], backend: str, capacity_pct: int, models: Collection[str]
) -> tuple[tuple[tuple[float, float], ...], str]:
    """(curve, what to tell the operator): the curve is empty when nothing usable was measured, the text when nothing was at all.
    A curve that ends below the capacity goes on flat: more than was measured is never promised."""
    try:
        found = read_speed(root)
    except StorageError as error:
        return (), f"the measured speed is not used: {error}"
    if found is None:
        return (), ""
    why = refusal(found, machine=machine, devices=devices, backend=backend, capacity_pct=capacity_pct, models=models)
    if why:
        return (), f"the measured speed of {found.measured_utc} is not used: {why}; run driftbox calibrate again"
    last_pct, last = found.speed[-1]
    curve = found.speed if last_pct >= capacity_pct else (*found.speed, (float(capacity_pct), last))
    return curve, f"plans use the speed measured on {found.measured_utc}, {found.known} known"
