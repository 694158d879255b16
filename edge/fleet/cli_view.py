"""What commands say of the membership: as the running box tells it, else as its folder says."""

from __future__ import annotations

from pydantic import ValidationError

from configs.errors import DriftboxError
from configs.schema import BoxConfig
from edge.client import ask_box
from edge.fleet.membership import MemberFolder
from edge.fleet.view import FleetView


def member_view(config: BoxConfig) -> FleetView:
    """Raises StorageError for a membership that cannot be read."""
    try:
        return FleetView.model_validate(ask_box(config, "GET", "fleet", timeout_s=3.0))
    except (DriftboxError, ValidationError):
        return folder_view(config)


def folder_view(config: BoxConfig) -> FleetView:
    """Without asking a running box. Raises StorageError."""
    folder = MemberFolder(config.box.data_dir)
    member = folder.read()
    if member is None:
        return FleetView(joined=False, enabled=config.fleet.enabled)
    try:
        until_utc, trouble = folder.expires_utc_s(), "the box does not run, or does not answer"
    except DriftboxError as error:
        until_utc, trouble = None, error.message
    return FleetView(
        joined=True, enabled=config.fleet.enabled, box=member.box, site=member.site, controller=member.url, trouble=trouble,
        certificate_until_utc=until_utc,
    )  # fmt: skip
