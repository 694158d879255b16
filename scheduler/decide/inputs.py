"""What the inputs of all systems have in common: strict fields, and refusals that name every problem with its path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from configs.errors import ConfigError

M = TypeVar("M", bound=BaseModel)

#: Seconds of any monotonic clock.
Clock = Callable[[], float]

Name = Annotated[str, Field(min_length=1, max_length=200)]
#: JSON knows one kind of number: 300.0 is a whole percent too (but true is not).
WholePct = Annotated[int, BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)]
Quality = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """Unknown keys, numbers in quotes, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def no_doubles(names: Sequence[str], what: str) -> None:
    """Errors: ValueError naming the first double."""
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise ValueError(f"two entries with the {what} '{doubles[0]}'")


def parse(model: type[M], data: Any) -> M:
    """`data` as `model`. Errors: ConfigError with every problem and its path."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = tuple((_path(e["loc"]) or "(input)", e["msg"].removeprefix("Value error, ")) for e in error.errors())
        text = "; ".join(f"{path}: {what}" for path, what in problems)
        raise ConfigError(f"the input is wrong: {text}", problems=problems, remedy="see docs/decide.md") from None


def _path(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
