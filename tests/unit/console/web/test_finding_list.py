"""List of what is wrong, at the top of a page."""

from __future__ import annotations

import pytest

from service.console.web.finding_list import finding_list
from service.health.kinds import BROKER_DOWN

NOW_MS = 1_795_939_844_192


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [(-5, " just now"), (999, " just now"), (32_000, " for 32 s"), (600_000, " for 10 min")],
)
def test_a_finding_says_how_long_it_lasts(age_ms: int, words: str) -> None:
    shown = finding_list([BROKER_DOWN.found("node 1", "broker 1 is down", NOW_MS - age_ms)], NOW_MS)
    assert f'<span class="since">{words}</span>' in str(shown)
