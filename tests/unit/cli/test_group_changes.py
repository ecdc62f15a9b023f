"""Groups that a command changes: those that are named, or all of consumers."""

from __future__ import annotations

import argparse

from service.cli.group_changes import groups_of
from service.groups.admin_models import GroupRow, Listing


def test_all_groups_are_those_of_consumers_and_no_workers_or_share_groups() -> None:
    rows = (
        GroupRow("classic", 1, "Empty", "classic", "consumer"),
        GroupRow("connect-cluster", 1, "Empty", "classic", "connect"),
        GroupRow("modern", 1, "Empty", "consumer", "consumer"),
        GroupRow("offsets-alone", 1, "Empty", "classic", ""),
        GroupRow("shared", 1, "Empty", "share", "share"),
        GroupRow("streams", 1, "Empty", "streams", "streams"),
    )
    everybody = argparse.Namespace(groups=[], all_groups=True)
    assert groups_of(everybody, Listing(rows)) == ["classic", "modern", "offsets-alone"]
    named = argparse.Namespace(groups=["connect-cluster", "shared", "shared"], all_groups=False)
    assert groups_of(named, Listing(rows)) == ["connect-cluster", "shared"]
