"""A run of all benches as one JSON file, written after each part: a run may be cut off, and goes on.

    {"format": 1, "is_quick": false, "facts": {"processors": "2 × …", …},
     "parts": {"speed": {"seconds": 81.2, "commit": "6e6076af1", "processors": "2 × …", "failed": null,
                         "figures": {…}}}}

`figures` are those of `bench/figures.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, Figures, figures_of, write_json

FORMAT: Final = 1


@dataclass
class PartResult:
    """The figures of one part; `commit` is what was measured, `processors` where, `failed` says why it ended
    early."""

    seconds: float = 0.0
    commit: str = ""
    processors: str = ""
    failed: str | None = None
    figures: Figures = field(default_factory=Figures)


@dataclass
class Results:
    """All parts of a run, in its order."""

    is_quick: bool
    facts: dict[str, str]
    parts: dict[str, PartResult] = field(default_factory=dict)

    def found(self, part: str, begins: str) -> list[tuple[str, Figure]]:
        """Return the figures of a part whose names begin so, with their names."""
        figures = self.parts.get(part, PartResult()).figures.found
        return [(what, one) for what, one in figures.items() if what.startswith(begins)]

    def write(self, path: Path) -> None:
        parts = {
            name: {
                "seconds": round(one.seconds, 1),
                "commit": one.commit,
                "processors": one.processors,
                "failed": one.failed,
                "figures": one.figures.as_fields(),
            }
            for name, one in self.parts.items()
        }
        fields = {"format": FORMAT, "is_quick": self.is_quick, "facts": self.facts, "parts": parts}
        write_json(path, fields)


def read_results(path: Path) -> Results:
    """Read what `Results.write` has written. Raises `ValueError` for another format."""
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if fields.get("format") != FORMAT:
        raise ValueError(f"{path}: format {fields.get('format')}, expected {FORMAT}")
    parts = {
        name: PartResult(
            one["seconds"], one["commit"], one["processors"], one["failed"], figures_of(one["figures"])
        )
        for name, one in fields["parts"].items()
    }
    return Results(fields["is_quick"], fields["facts"], parts)
