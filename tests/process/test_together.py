"""Tests that share a resource of the machine run on one worker."""

from __future__ import annotations

import pytest


def test_the_scheduler_sees_the_groups(request: pytest.FixtureRequest) -> None:
    """It knows them by the names of tests alone, and pytest-xdist 3.8 cannot say them to every pytest."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("nothing is scheduled in groups here")
    assert request.node.nodeid.endswith("@process/test_together"), f"not under pytest {pytest.__version__}"
