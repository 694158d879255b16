"""Rendered cameras: their address read, and who serves them over RTSP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qs

from configs.errors import ConfigError
from configs.schema import BoxConfig, CameraEntry
from streams.rendered.serve import DEMO_CAMERAS, CameraScript
from streams.rtsp_process import RtspServerProcess


def script_of(entry: CameraEntry) -> CameraScript:
    """`rendered:street?seed=101&at=0:day,75:night` -> what the renderer is told. A camera of the built-in demo that gives only
    its scene has that demo's schedule. Raises ConfigError."""
    kind, _, query = entry.url.resolve().removeprefix("rendered:").partition("?")
    # In a query '+' stands for a space; here it joins conditions.
    values = {key: found[-1] for key, found in parse_qs(query.replace("+", "%2B")).items()}
    demo = next((s for s in DEMO_CAMERAS if s.id == entry.id and s.kind == kind), None)
    script = demo if demo is not None and not values else CameraScript(id=entry.id, kind=kind, seed=1)
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
        named = error.message if entry.id in error.message else f"camera {entry.id}: {error.message}"
        raise ConfigError(named, subject=entry.id, remedy=error.remedy) from None
    except ValueError:
        raise ConfigError(
            f"camera {entry.id}: the rendered address cannot be read", subject=entry.id,
            remedy="write rendered:street?seed=1&fps=5&at=0:day,60:day,90:night",
        ) from None  # fmt: skip
    return script


@contextlib.contextmanager
def rendered_server(config: BoxConfig) -> Iterator[dict[str, str]]:
    """Serves the rendered cameras of a configuration over real RTSP from a process of its own; yields camera id -> address."""
    scripts = [script_of(entry) for entry in config.active_cameras if entry.url.scheme == "rendered"]
    if not scripts:
        yield {}
        return
    server = RtspServerProcess([script.mount() for script in scripts])
    server.start()
    try:
        yield {script.id: server.url(script.id) for script in scripts}
    finally:
        server.stop()
