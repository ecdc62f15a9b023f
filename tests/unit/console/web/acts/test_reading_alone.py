"""Code that changes something is apart: a console that only reads does not even load it."""

from __future__ import annotations

import re
from pathlib import Path

SERVICE = Path(__file__).resolve().parents[5] / "service"
CONSOLE = SERVICE / "console"
ACTS = CONSOLE / "web" / "acts"
CHANGING = re.compile(r"\b(ChangingCluster|produce_batch|alter_settings|commit_offsets|add_partitions)\b")


def test_only_acts_know_a_request_that_changes_something() -> None:
    found = {path for path in CONSOLE.rglob("*.py") if CHANGING.search(path.read_text("utf-8"))}
    assert len(found) >= 5
    assert {path for path in found if ACTS not in path.parents} == set()


def test_only_the_server_loads_acts_and_where_they_are_allowed() -> None:
    loading = {
        path.relative_to(SERVICE): re.findall(r"^.*\bimport\b.*", text, re.MULTILINE)
        for path in SERVICE.rglob("*.py")
        if ACTS not in path.parents and "console.web.acts" in (text := path.read_text("utf-8"))
    }
    assert [*map(str, loading)] == ["console/web/server.py"]
    (lines,) = loading.values()
    acts = [line for line in lines if "console.web.acts" in line]
    # one for annotations alone, one where changes are allowed; none as the module is loaded
    assert [len(line) - len(line.lstrip()) for line in acts] == [4, 12]
