"""The page docs/health.md: a heading for each kind of finding, and no other, with its severity and check."""

from __future__ import annotations

import re
from pathlib import Path

from service.health.kinds import KINDS

PAGE = Path(__file__).parents[3] / "docs" / "health.md"


def sections() -> dict[str, str]:
    """Texts by the anchors that GitHub gives their headings."""
    parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-"): text
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_each_kind_of_finding_has_its_heading_and_each_heading_its_kind() -> None:
    assert sorted(sections()) == sorted(one.anchor for one in KINDS)


def test_the_page_says_of_each_kind_how_bad_it_is_what_it_means_and_what_to_do() -> None:
    found = sections()
    for one in KINDS:
        text = " ".join(found[one.anchor].split())
        ready = ", not ready" if one.is_failure else ""
        assert text.startswith(f"{one.severity.name.capitalize()}, check `{one.part}`{ready}. {one.meaning}")
        assert f"**Do:** {one.action}" in text
