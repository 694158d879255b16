"""Made-up requests from the published schema find no mistake of ours, and every answer is as documented. Always the same requests;
more of them and others: `driftbox bench api_fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from edge.web.openapi import completed
from tests.support.api_fuzz import fuzz, fuzzed_box


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_made_up_requests_find_no_mistake(tmp_path: Path) -> None:
    with fuzzed_box(tmp_path) as (app, headers):
        found = fuzz(app, headers, cases=300)
    assert found.server_errors == []
    assert found.undocumented == []
    assert found.cases >= 200
    assert found.statuses[200] > found.cases / 5, "a good part of them is right"
    assert sum(n for status, n in found.statuses.items() if 400 <= status < 500) > found.cases / 5, "and a good part is wrong"


class Answer(BaseModel):
    number: int


def test_a_mistake_would_be_found() -> None:
    app = FastAPI()

    @app.get("/broken")
    def broken(number: int) -> Answer:
        return Answer(number=1 // (number - number))

    @app.get(
        "/other", responses={200: {"content": {"application/json": {"schema": {"type": "object", "required": ["number"]}}}}}
    )
    def other() -> Response:
        return JSONResponse({"text": "no number"})

    @app.get("/third")
    def third() -> Answer:
        raise HTTPException(418)

    app.add_exception_handler(Exception, lambda request, error: JSONResponse({}, status_code=500))
    found = fuzz(app, {}, cases=12)
    assert any("/broken" in told for told in found.server_errors)
    assert any("/other" in told for told in found.undocumented)
    assert any("/third" in told for told in found.undocumented)


def test_every_operation_says_how_one_is_known_and_what_is_refused(tmp_path: Path) -> None:
    with fuzzed_box(tmp_path) as (app, _):
        spec = app.openapi()
    assert set(spec["components"]["securitySchemes"]) == {"token", "session"}
    open_to_all = 0
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            if "security" not in operation:
                open_to_all += 1
                continue
            assert {"401", "403", "421"} <= set(answers), (method, path)
            if method in ("put", "post", "patch"):
                assert {"413", "415"} <= set(answers), (method, path)
    assert open_to_all == 5, "/healthz, /readyz, the state of signing in, signing in, claiming"


def test_a_box_without_accounts_names_no_way_to_be_known() -> None:
    spec = completed(FastAPI().openapi(), login=False)
    assert "securitySchemes" not in spec["components"]
