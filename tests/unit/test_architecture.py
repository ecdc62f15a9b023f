"""docs/architecture.md names what is there, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_module_has_its_line_in_the_map() -> None:
    modules = {
        str(path.relative_to(ROOT / "service"))
        for path in (ROOT / "service").rglob("*.py")
        if path.name != "__init__.py"
    }
    named, room = set(), ""
    for line in TEXT.splitlines():
        if heading := re.match(r"\*\*`(\w+)/`\*\*", line):
            room = heading[1]
        elif entry := re.match(r"- `([\w/]+\.py)`", line):
            named.add(f"{room}/{entry[1]}")
    assert named == modules


def test_the_picture_of_the_rooms_is_the_one_that_the_build_checks() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("containers") == ["service"])
    assert "```\n" + "\n".join(layers) + "\n```" in TEXT
