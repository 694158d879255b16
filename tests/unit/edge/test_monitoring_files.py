"""Dashboards and alert rules: they can be read, and every metric and label in them is one that the box tells."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.metrics import METRICS

FOLDER = Path(__file__).parents[3] / "configs" / "monitoring"
BOARDS = sorted(FOLDER.glob("grafana-*.json"))
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
LABELS = {about.name: set(about.labels) for about in METRICS}
#: What Prometheus itself adds to each series.
BY_PROMETHEUS = {"instance", "job"}


def expressions() -> list[tuple[str, str]]:
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    for board in BOARDS:
        for panel in json.loads(board.read_text())["panels"]:
            found += [(f"{board.stem}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


def selectors(expression: str) -> list[tuple[str, list[str]]]:
    """(metric, labels that are selected by) of every series in an expression."""
    found = re.findall(r"\b(driftbox_\w+|up)\b(?:\{([^}]*)\})?", expression)
    return [(name, re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) for name, inside in found]


def balanced(text: str) -> bool:
    open_: list[str] = []
    pairs = {")": "(", "]": "[", "}": "{"}
    for sign in re.sub(r'"[^"]*"', "", text):
        if sign in pairs.values():
            open_.append(sign)
        elif sign in pairs and (not open_ or open_.pop() != pairs[sign]):
            return False
    return not open_


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=lambda value: value[:40])
def test_every_expression_is_about_what_the_box_tells(where: str, expression: str) -> None:
    used = selectors(expression)
    assert used, where
    assert balanced(expression), where
    for name, labels in used:
        if name == "up":
            continue
        assert name in LABELS, f"{where}: the box tells no {name}"
        assert set(labels) <= LABELS[name] | BY_PROMETHEUS, f"{where}: {name} has no such label"
    for name, _ in used:
        if name.endswith("_total"):
            assert re.search(rf"(rate|increase)\({name}", expression), f"{where}: a counter is told as a rate"


def test_words_in_legends_and_summaries_are_labels() -> None:
    for rule in RULES:
        labels = set().union(*(LABELS.get(name, set()) for name, _ in selectors(rule["expr"]))) | BY_PROMETHEUS
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    for board in BOARDS:
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel["targets"]:
                known = set().union(*(LABELS[name] for name, _ in selectors(target["expr"]))) | BY_PROMETHEUS
                assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, panel["title"]


def test_boards_are_whole_and_bound_to_no_server() -> None:
    assert len(BOARDS) == 2
    ids: list[Any] = []
    for board in BOARDS:
        data = json.loads(board.read_text())
        ids.append(data["uid"])
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in data["panels"]]
        assert len(places) == len(set(places))
        assert len({p["id"] for p in data["panels"]}) == len(data["panels"])
        assert {t["datasource"]["uid"] for p in data["panels"] for t in p["targets"]} == {"${source}"}
    assert len(set(ids)) == 2


def test_alerts_have_names_of_their_own_and_are_explained() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    page = (FOLDER.parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_example_of_a_scrape_can_be_read() -> None:
    scrape = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert scrape["scrape_configs"][0]["job_name"] == "driftbox"
