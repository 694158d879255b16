"""The OpenAPI document, completed by what the guards do: how one is known, and what is answered to whom that is not enough."""

from __future__ import annotations

import re
from typing import Any

from edge.api_guard import BODY_METHODS, SAFE_METHODS, UPLOADS
from edge.web.accounts.gate import COOKIE, is_open

_METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
_ERROR = {
    "type": "object", "required": ["detail"],
    "properties": {
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "code": {"type": "string", "description": "A stable short name of it."},
    },
}  # fmt: skip
#: Our validation errors hold nothing of what was given: it may be a password in the wrong place.
_WRONG = {
    "type": "object", "required": ["detail"],
    "properties": {
        "detail": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object", "required": ["loc", "msg", "type"],
                        "properties": {
                            "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
                            "msg": {"type": "string"}, "type": {"type": "string"},
                        },
                    },
                },
            ]
        },
        "code": {"type": "string"},
    },
}  # fmt: skip


def completed(spec: dict[str, Any], *, login: bool) -> dict[str, Any]:
    """The same document with security schemes and the answers of the guards. login: the box has accounts."""
    parts = spec.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    schemas["Problem"], schemas["WrongInput"] = _ERROR, _WRONG
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    if login:
        parts["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "An API token (docs/http.md)."},
            "session": {
                "type": "apiKey", "in": "cookie", "name": COOKIE,
                "description": "Set by signing in; under TLS with the prefix __Host-. Writes also need the header X-Driftbox.",
            },
        }  # fmt: skip
    for path, operations in spec.get("paths", {}).items():
        for method in _METHODS:
            if method in operations:
                _complete(operations[method], method.upper(), path, login=login)
    return spec


def _complete(operation: dict[str, Any], method: str, path: str, *, login: bool) -> None:
    answers = operation.setdefault("responses", {})
    open_to_all = is_open(method, path)
    if login and not open_to_all:
        operation["security"] = [{"token": []}, {"session": []}]
        _add(answers, 401, "not signed in, or the token is not valid")
        _add(answers, 403, "this role or token may not, or another site's page asks")
    if method not in SAFE_METHODS:
        _add(answers, 403, "another site's page asks, or this machine must")
    if method in BODY_METHODS or operation.get("parameters"):
        _add(answers, 400, "cannot be read, or asks for what cannot be")
    if method in BODY_METHODS:
        file = any(upload.method == method and re.fullmatch(upload.path, path) for upload in UPLOADS)
        _add(answers, 413, "a longer file than this takes" if file else "more than 256 KiB")
        _add(answers, 415, "another kind of file" if file else "not JSON")
    if path not in ("/healthz", "/readyz"):
        _add(answers, 421, "asked under a name that is not the box's")
    for status, answer in answers.items():
        if int(status) >= 400 and "content" not in answer:
            answer["content"] = {"application/json": {"schema": _ref("Problem")}}
        if status == "422":
            answer["content"] = {"application/json": {"schema": _ref("WrongInput")}}


def _add(answers: dict[str, Any], status: int, words: str) -> None:
    answers.setdefault(str(status), {"description": words})


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
