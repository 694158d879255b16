"""A web server over the fakes of the learning pages, and what their browser tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from edge.labels_fake import FakeLabels
from edge.web.fake import FakeSource
from edge.web.fake_learning import FakeGpu, FakeLearning, FakeModels, FakeQueries, FakeWhy
from edge.web.serve import WebServer
from edge.web.services import Services
from tests.support.visits import Visit


@dataclass(kw_only=True)
class Fakes:
    """The fakes behind the pages, so that a test can look at what reached them."""

    learning: FakeLearning = field(default_factory=FakeLearning)
    labels: FakeLabels = field(default_factory=FakeLabels)
    models: FakeModels = field(default_factory=FakeModels)
    queries: FakeQueries = field(default_factory=FakeQueries)

    def services(self) -> Services:
        return Services(
            labels=self.labels, learning=self.learning, why=FakeWhy(), gpu=FakeGpu(), models=self.models, queries=self.queries
        )


@dataclass(kw_only=True)
class Served:
    url: str
    fakes: Fakes


@contextmanager
def served() -> Iterator[Served]:
    fakes = Fakes()
    with WebServer(FakeSource(), host="127.0.0.1", port=0, services=fakes.services()) as server:
        yield Served(url=server.url, fakes=fakes)


def as_viewer(visit: Visit) -> Any:
    """The same page for somebody who may look only."""
    me = {"login": True, "claimed": True, "me": {"name": "vera", "role": "viewer", "kind": "session"}}
    visit.page.route("**/api/v1/sign-in", lambda route: route.fulfill(json=me))
    visit.page.reload()
    visit.page.wait_for_selector("#page section")
    return visit.page
