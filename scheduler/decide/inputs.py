"""What the inputs of all systems have in common: strict fields, and refusals that name every problem with its path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from configs.errors import ConfigError

M = TypeVar("M", bound=BaseModel)

#: Seconds of any monotonic clock.
Clock = Callable[[], float]

#: Where pydantic would speak of its classes.
_TEXTS = {"model_type": "must be a JSON object", "dict_type": "must be a JSON object"}

#: Problems that the text of a refusal tells; its list has all.
TOLD_MOST = 20

Name = Annotated[str, Field(min_length=1, max_length=200)]
#: JSON knows one kind of number: 300.0 is a whole percent too (but true is not).
WholePct = Annotated[int, BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)]
Quality = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Part of an answer for people to read."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


class Decide(Protocol):
    """What a system does. data: what `json.loads` gave; explain: also say why. Errors: ConfigError with every problem's path."""

    def __call__(self, data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]: ...


class Strict(BaseModel):
    """Unknown keys, numbers in quotes, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def no_doubles(names: Iterable[str], what: str) -> None:
    """Errors: ValueError naming the first double, in alphabetical order."""
    doubles = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubles:
        raise ValueError(f"two entries with the {what} '{doubles[0]}'")


def parse(model: type[M], data: Any) -> M:
    """`data` as `model`. Errors: ConfigError with every problem and its path; its text tells the first of them."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        problems = tuple(
            (_path(e["loc"]) or "(input)", _TEXTS.get(e["type"]) or e["msg"].removeprefix("Value error, ")) for e in details
        )
    except RecursionError:
        problems = (("(input)", "nested too deeply"),)
    raise refusal(problems)


def refusal(problems: Sequence[tuple[str, str]]) -> ConfigError:
    """The error for an input with these (path, text) problems."""
    told = [f"{path}: {what}" for path, what in problems[:TOLD_MOST]]
    more = [f"and {len(problems) - TOLD_MOST} more"] if len(problems) > TOLD_MOST else []
    return ConfigError(f"the input is wrong: {'; '.join(told + more)}", problems=tuple(problems), remedy="see docs/decide.md")


def _path(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        key = part[:100] if isinstance(part, str) else part  # anyone may have written it
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text
