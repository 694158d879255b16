"""The address of a rendered camera, read: `rendered:street?seed=101&at=0:day,75:night`."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs

from configs.errors import ConfigError
from streams.rendered.serve import DEMO_CAMERAS, CameraScript


def script_of(id: str, address: str) -> CameraScript:
    """What the renderer is told of camera `id`. A camera of the built-in demo that gives only its scene has that demo's schedule.
    Raises ConfigError."""
    kind, _, query = address.removeprefix("rendered:").partition("?")
    # In a query '+' stands for a space; here it joins conditions.
    values = {key: found[-1] for key, found in parse_qs(query.replace("+", "%2B")).items()}
    demo = next((s for s in DEMO_CAMERAS if s.id == id and s.kind == kind), None)
    script = demo if demo is not None and not values else CameraScript(id=id, kind=kind, seed=1)
    try:
        if "seed" in values:
            script = replace(script, seed=int(values["seed"]))
        if "fps" in values:
            script = replace(script, fps=float(values["fps"]))
        if "at" in values:
            moments = [moment.split(":", 1) for moment in values["at"].split(",")]
            script = replace(script, schedule=tuple((float(at_s), name) for at_s, name in moments))
        script.scene()
    except ConfigError as error:
        named = error.message if id in error.message else f"camera {id}: {error.message}"
        raise ConfigError(named, subject=id, remedy=error.remedy) from None
    except ValueError:
        raise ConfigError(
            f"camera {id}: the rendered address cannot be read", subject=id,
            remedy="write rendered:street?seed=1&fps=5&at=0:day,60:day,90:night",
        ) from None  # fmt: skip
    return script
