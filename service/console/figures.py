"""Parser of a node's OpenMetrics text, and the changes between two samples of a node. [P]"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any, Final, NamedTuple

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_OF_PARTITION: Final = re.compile(r"^firn_partition_.*\n", re.MULTILINE)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

Labels = tuple[tuple[str, str], ...]


def without_partitions(text: str) -> str:
    """Return `text` without the metrics of single partitions, which may be most of it."""
    return _OF_PARTITION.sub("", text)


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Return samples by name and labels; malformed lines and numbers that are not finite are left out."""
    found: dict[str, dict[Labels, float]] = {}
    for line in text.split("\n"):  # no other character ends one: a label may have them
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not isfinite(value):
            continue
        labels = tuple((name, _plain(words)) for name, words in _LABEL.findall(match[2] or ""))
        found.setdefault(match[1], {})[labels] = value
    return found


def _plain(words: str) -> str:
    """Return a label's value without escapes."""
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], words)


def _bound(written: str) -> float | None:
    """Parse the bound of a histogram's bucket; None if it is malformed."""
    try:
        found = float(written)
    except ValueError:
        return None
    return None if isnan(found) else found


class Figures:
    """One sample of a node. `at_s` is a monotonic clock."""

    def __init__(
        self, at_s: float, text: str, health: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]
    ) -> None:
        self.at_s = at_s
        self.samples = parse(text)
        self.health = health
        self.turns = turns

    def one(self, name: str, **labels: str) -> float:
        """Return the sample with exactly these labels; 0 if there is none."""
        return self.samples.get(name, {}).get(tuple(labels.items()), 0.0)

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all samples that have these labels among theirs."""
        wanted = set(labels.items())
        return sum(value for key, value in self.samples.get(name, {}).items() if wanted <= set(key))

    def values(self, name: str, label: str) -> list[str]:
        """Return the values of `label`, in the order of the text."""
        return list(dict.fromkeys(dict(key).get(label, "") for key in self.samples.get(name, {})))

    def as_json(self) -> dict[str, Any]:
        """Return everything in a form for JSON."""
        metrics = {
            name: [{"labels": dict(labels), "value": value} for labels, value in found.items()]
            for name, found in self.samples.items()
            if not name.endswith("_bucket")
        }
        return {"health": self.health, "longest_turns": self.turns, "metrics": metrics}


class Between(NamedTuple):
    """Change from one sample to the next; since the start if there is only one."""

    before: Figures | None
    now: Figures

    def rate(self, name: str, **labels: str) -> float:
        """Return the increase per second."""
        if self.before is None:
            return 0.0
        grown = self.now.total(name, **labels) - self.before.total(name, **labels)
        return max(grown, 0.0) / max(self.now.at_s - self.before.at_s, 1e-9)

    def quantile(self, name: str, share: float, **labels: str) -> float:
        """Return the bound of the bucket that completes `share` of the observed values; 0 without any."""
        counts: dict[float, float] = {}
        wanted = set(labels.items())
        for sign, figures in ((1, self.now), (-1, self.before)):
            for key, value in (
                figures.samples.get(f"{name}_bucket", {}).items() if figures is not None else ()
            ):
                if wanted <= set(key) and (bound := _bound(dict(key).get("le", ""))) is not None:
                    counts[bound] = counts.get(bound, 0.0) + sign * value
        most = max(counts.values(), default=0.0)
        if most <= 0:
            return 0.0
        return next((bound for bound, count in sorted(counts.items()) if count >= share * most), 0.0)
