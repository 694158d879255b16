"""Asks a running box on this machine, over the same HTTP that the pages use.

With login it shows the token that the box leaves in its data folder (`edge.web.accounts.local`); with TLS it trusts the box's own
certificate and the given one, and nothing else.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from pydantic import ValidationError

from configs.errors import EnvironmentLacking, UsageError
from configs.schema import BoxConfig
from edge.status import BoxStatus
from edge.web.accounts.local import read_local_token
from edge.web.tls import own_paths

TIMEOUT_S = 2.0
_CODES = {404: "not_found", 409: "taken", 412: "changed"}


def running_status(config: BoxConfig, *, timeout_s: float = TIMEOUT_S) -> BoxStatus | None:
    """What the box that serves `config.web` tells; None when nothing, or something else, answers there."""
    if not config.web.enabled:
        return None
    try:
        status, body = _asked(config, "GET", "status", None, timeout_s)
        return BoxStatus.model_validate_json(body) if status == 200 else None
    except (OSError, http.client.HTTPException, ValidationError):
        return None


def ask_box(config: BoxConfig, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> Any:
    """The answer (JSON) to a request under `/api/v1/`, of the running box. Raises UsageError when it refuses, with its words, and
    EnvironmentLacking 'not_running' when none answers."""
    where = f"{config.web.host}:{config.web.port}"
    try:
        status, answer = _asked(config, method, path, body, timeout_s)
        told = json.loads(answer) if answer else None
    except (OSError, http.client.HTTPException, ValueError):
        raise EnvironmentLacking(
            f"no box answers on {where}",
            subject=where,
            code="not_running",
            remedy="start it, or name its configuration with --config",
        ) from None
    if 200 <= status < 300:
        return told
    detail = told.get("detail") if isinstance(told, dict) else None
    words = detail if isinstance(detail, str) else json.dumps(detail, ensure_ascii=False)
    raise UsageError(f"the box refuses: {words}", subject=path, code=_CODES.get(status, "refused"))


def fetch_from_box(config: BoxConfig, path: str, *, timeout_s: float = 60.0) -> bytes | None:
    """The bytes (a picture) under `/api/v1/` of the running box; None: there are none, or no box answers."""
    try:
        status, body = _asked(config, "GET", path, None, timeout_s)
    except (OSError, http.client.HTTPException):
        return None
    return body if status == 200 else None


def _asked(config: BoxConfig, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
    """(status, body)."""
    connection = _connection(config, timeout_s)
    token = read_local_token(config.box.data_dir)
    headers = {"Authorization": f"Bearer {token}"} if token is not None and config.web.login else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, f"/api/v1/{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _connection(config: BoxConfig, timeout_s: float) -> http.client.HTTPConnection:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.web.host, config.web.host)
    if config.web.tls_kind == "off":
        return http.client.HTTPConnection(host, config.web.port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, config.web.port, timeout=timeout_s, context=_trust(config))


def _trust(config: BoxConfig) -> ssl.SSLContext:
    """Exactly the certificates that the box may serve, under whatever name it is asked here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    given = config.web.cert_file.expanduser() if config.web.cert_file is not None else None
    for path in (own_paths(config.box.data_dir)[0], given):
        if path is not None and path.is_file():
            context.load_verify_locations(path)
    return context
