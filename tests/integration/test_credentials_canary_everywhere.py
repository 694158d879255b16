"""Canaries of a box with accounts and TLS, looked for in everything it shows (`tests/support/canaries.py` says where).

Beside `test_credentials_canary.py`, which looks at what opens the box itself and at what commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.canaries import forms, shown_by_a_box
from tests.support.mosquitto import require_mosquitto

pytestmark = [pytest.mark.slow, pytest.mark.mqtt, pytest.mark.timeout(900)]


def test_no_canary_is_shown_anywhere(tmp_path: Path) -> None:
    require_mosquitto()
    shown = shown_by_a_box(tmp_path)
    seen = shown.seen
    assert shown.leaks() == []
    # That the net has no hole.
    assert len([name for name in seen if name.startswith("GET ")]) > 20
    for name in ("bundle: status.json", "live updates", "mqtt"):
        assert b"refused" in seen[name]
    assert b"driftbox_camera_up" in seen["/metrics"]
    assert any("/backups/" in name and name.endswith("driftbox.db") for name in seen)
    config = (tmp_path / "box.yaml").read_bytes()
    assert any(form in config for secret in shown.secrets for form in forms(secret))
