"""Asks a running box on this machine for its status, over the same HTTP that the page uses."""

from __future__ import annotations

import http.client

from pydantic import ValidationError

from configs.schema import BoxConfig
from edge.status import BoxStatus

TIMEOUT_S = 2.0


def running_status(config: BoxConfig, *, timeout_s: float = TIMEOUT_S) -> BoxStatus | None:
    """What the box that serves `config.web` tells; None when nothing, or something else, answers there."""
    if not config.web.enabled:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.web.host, config.web.host)
    connection = http.client.HTTPConnection(host, config.web.port, timeout=timeout_s)
    try:
        connection.request("GET", "/api/v1/status")
        answer = connection.getresponse()
        return BoxStatus.model_validate_json(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValidationError):
        return None
    finally:
        connection.close()
