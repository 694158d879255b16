"""The state of a camera's tracked objects and queries in a parcel: who is in the picture by which id, what was counted, who is where.

It is what was known after exactly one frame, the last one that the owner before has told (`after_s`, by the camera's clock). The next
owner goes on with the frame after it, so a crossing is seen by one of them, once. JSON with a schema, never a pickle; bounded in all
(`MOST_BYTES`) and in every list; whoever opens one believes nothing: values are checked by their schema (`edge.queries.carried`), names
against the camera as it is asked here, and what does not fit costs this state, not the migration.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from configs.errors import UsageError
from edge.objects.carried import ObjectsState
from edge.queries.carried import Plain, QueryStates
from scheduler.fleet.types import CameraKey

#: Raised when a value changes its meaning or goes; another one is refused.
SCHEMA: Literal[1] = 1
#: A state has some KB; of two hundred objects and ten queries a MiB or two.
MOST_BYTES = 8 * 2**20


class CameraState(Plain):
    """after_s: capture time of the frame after which it was taken, as the camera gave it; objects, queries: None: nothing is followed,
    or asked, or could be had."""

    release: Literal[1] = SCHEMA
    camera: Annotated[str, Field(max_length=200)]
    after_s: float
    objects: ObjectsState | None = None
    queries: QueryStates | None = None

    @staticmethod
    def of(camera: CameraKey, after_s: float, objects: ObjectsState | None, queries: QueryStates | None) -> CameraState:
        return CameraState(camera=str(camera), after_s=after_s, objects=objects, queries=queries)


def packed_state(state: CameraState) -> bytes:
    """UsageError: it is larger than anybody would take."""
    data = state.model_dump_json().encode()
    if len(data) > MOST_BYTES:
        raise _unusable(state.camera, f"it has {len(data)} bytes, at most {MOST_BYTES} are taken")
    return data


def unpacked_state(data: bytes, camera: CameraKey) -> CameraState:
    """UsageError for anything that is not the state of that camera, by this release's schema."""
    if len(data) > MOST_BYTES:
        raise _unusable(str(camera), f"it has {len(data)} bytes, at most {MOST_BYTES} are taken")
    try:
        state = CameraState.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:120]
        raise _unusable(str(camera), f"{where or 'the whole'}: {first['msg'][:200]}") from None
    except (ValueError, RecursionError) as error:
        raise _unusable(str(camera), type(error).__name__) from None
    if state.camera != str(camera):
        raise _unusable(str(camera), f"it is of camera {state.camera}")
    return state


def _unusable(camera: str, why: str) -> UsageError:
    return UsageError(
        f"the state of camera {camera} cannot be used: {why}", subject=camera, remedy="is its sender of the same release?"
    )
