"""What changed between two documents: examples, and that carrying it out always gives the newer one."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.api import STATIC
from edge.web.fake import FakeSource
from edge.web.json_patch import Operation, patch_between

KEYS = st.text(st.sampled_from("ab/~0é"), max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def carried_out(document: Any, operations: list[Operation]) -> Any:
    """RFC 6902, written for this test: independent of the code under test."""
    whole = {"": copy.deepcopy(document)}
    for operation in operations:
        words = [w.replace("~1", "/").replace("~0", "~") for w in operation["path"].split("/")]
        node: Any = whole
        for word in words[:-1]:
            node = node[int(word)] if isinstance(node, list) else node[word]
        place: Any = (len(node) if words[-1] == "-" else int(words[-1])) if isinstance(node, list) else words[-1]
        if operation["op"] == "remove":
            del node[place]
        elif operation["op"] == "add" and isinstance(node, list):
            node.insert(place, operation["value"])
        else:
            assert operation["op"] == "add" or (place in node if isinstance(node, dict) else place < len(node))
            node[place] = operation["value"]
    return whole[""]


def as_text(value: Any) -> str:
    """1, 1.0 and true are equal to Python and not to JSON."""
    return json.dumps(value, sort_keys=True)


@given(VALUES, VALUES)
def test_the_patch_makes_the_newer_of_the_older(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    assert as_text(carried_out(before, patch_between(before, after))) == as_text(after)
    assert as_text(before) == as_text(kept), "what was given is not changed"


@given(VALUES)
def test_nothing_changed_is_an_empty_patch(value: Any) -> None:
    assert patch_between(value, copy.deepcopy(value)) == []


def test_examples() -> None:
    before = {"cameras": [{"id": "a", "fps": 4.0}, {"id": "b", "fps": 5.0}], "note": "x", "a/b": 1}
    after = {"cameras": [{"id": "a", "fps": 4.0}, {"id": "b", "fps": 4.9}, {"id": "c"}], "a/b": 2}
    assert patch_between(before, after) == [
        {"op": "remove", "path": "/note"},
        {"op": "replace", "path": "/cameras/1/fps", "value": 4.9},
        {"op": "add", "path": "/cameras/-", "value": {"id": "c"}},
        {"op": "replace", "path": "/a~1b", "value": 2},
    ]
    assert patch_between([1, 2, 3], [1]) == [{"op": "remove", "path": "/2"}, {"op": "remove", "path": "/1"}]


def test_true_is_not_one() -> None:
    assert patch_between({"on": 1}, {"on": True}) == [{"op": "replace", "path": "/on", "value": True}]


def test_a_second_of_a_box_is_a_small_part_of_its_status() -> None:
    source = FakeSource()
    before, after = (source.status().model_dump(mode="json") for _ in range(2))
    assert len(json.dumps(patch_between(before, after))) < len(json.dumps(after)) / 4


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; the browser tests run it as well")
def test_the_page_carries_it_out_alike(tmp_path: Path) -> None:
    source = FakeSource()
    before, after = (source.status().model_dump(mode="json") for _ in range(2))
    given_ = tmp_path / "given.json"
    given_.write_text(json.dumps({"before": before, "patch": patch_between(before, after)}))
    program = (
        f"import {{ patched }} from {json.dumps((STATIC / 'live.js').as_uri())};import fs from 'node:fs';"
        f"const g = JSON.parse(fs.readFileSync({json.dumps(str(given_))}));console.log(JSON.stringify(patched(g.before, g.patch)));"
    )
    done = subprocess.run(["node", "--input-type=module", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == after
