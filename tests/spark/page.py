"""The examples of docs/spark-examples.md: code blocks that begin with ``# example: NAME``, or ``// …``."""

from __future__ import annotations

import re

from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "spark-examples.md"
_BLOCK = re.compile(r"^```\w+\n(?:#|//) example: (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    found = _BLOCK.findall(PAGE.read_text("utf-8"))
    assert len({name for name, _ in found}) == len(found), "two examples of one name"
    return dict(found)
