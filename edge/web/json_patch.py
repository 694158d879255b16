"""What changed between two JSON documents, as RFC 6902 (JSON Patch): `add`, `remove` and `replace`, in the order in which they apply.

Lists are compared place by place: ours keep their order (cameras by id, curves by time), so a number that changed in one camera is one
operation. (RFC 7396, merge patches, would send all cameras anew for it.)
"""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def patch_between(before: Any, after: Any, path: str = "") -> list[Operation]:
    """The operations that make `after` of `before`; empty when they are equal."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _of_objects(before, after, path)
    if isinstance(before, list) and isinstance(after, list):
        return _of_lists(before, after, path)
    if type(before) is type(after) and before == after:
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _of_objects(before: dict[str, Any], after: dict[str, Any], path: str) -> list[Operation]:
    found: list[Operation] = [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in before if key not in after]
    for key, value in after.items():
        place = f"{path}/{_escaped(key)}"
        if key in before:
            found += patch_between(before[key], value, place)
        else:
            found.append({"op": "add", "path": place, "value": value})
    return found


def _of_lists(before: list[Any], after: list[Any], path: str) -> list[Operation]:
    found: list[Operation] = []
    for place, (old, new) in enumerate(zip(before, after, strict=False)):
        found += patch_between(old, new, f"{path}/{place}")
    found += [{"op": "add", "path": f"{path}/-", "value": value} for value in after[len(before) :]]
    found += [{"op": "remove", "path": f"{path}/{place}"} for place in reversed(range(len(after), len(before)))]
    return found


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
