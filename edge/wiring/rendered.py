"""Rendered cameras: who serves them over RTSP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from configs.schema import BoxConfig
from streams.rendered.address import script_of
from streams.rtsp_process import RtspServerProcess


@contextlib.contextmanager
def rendered_server(config: BoxConfig) -> Iterator[dict[str, str]]:
    """Serves the rendered cameras of a configuration over real RTSP from a process of its own; yields camera id -> address."""
    scripts = [script_of(entry.id, entry.url.resolve()) for entry in config.active_cameras if entry.url.scheme == "rendered"]
    if not scripts:
        yield {}
        return
    server = RtspServerProcess([script.mount() for script in scripts])
    server.start()
    try:
        yield {script.id: server.url(script.id) for script in scripts}
    finally:
        server.stop()
