"""Scrapes of a node's /metrics, and PromQL over them, answered by promtool."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.processes import REPOSITORY

RULES = REPOSITORY / "infra" / "monitoring" / "firn.rules.yml"
TARGET = {"job": "firn", "instance": "n1:9464"}
"""What Prometheus adds to each series of a scrape, and `up` besides."""

Scrape = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> Scrape:
    """All series by name and labels, as Prometheus' own parser reads them."""
    url, accept = f"http://127.0.0.1:{port}/metrics", {"Accept": "application/openmetrics-text"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=accept), timeout=20) as answer:
        text = answer.read().decode()
    parse: Any = text_string_to_metric_families
    series = {
        (sample.name, frozenset({**sample.labels, **TARGET}.items())): float(sample.value)
        for family in parse(text)
        for sample in family.samples
    }
    return {**series, ("up", frozenset(TARGET.items())): 1.0}


def labels_by_name(scrapes: Iterable[Scrape]) -> dict[str, set[str]]:
    """The labels that each metric has in any of the scrapes."""
    found: dict[str, set[str]] = {}
    for one in scrapes:
        for name, labels in one:
            found.setdefault(name, set()).update(label for label, _ in labels)
    return found


_SELECTOR = re.compile(r"(?<![:\w])((?:firn|process)_\w+|up)(?![:\w])(?!\s*\()(?:\{([^}]*)\})?")
"""Names with a colon are of recordings, not of nodes."""
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def selectors(expression: str) -> Iterable[tuple[str, set[str]]]:
    """(metric, labels that are matched) of each selector in an expression.

    >>> list(selectors('sum by (tier) (rate(firn_log_bytes{tier="local"}[5m]))'))
    [('firn_log_bytes', {'tier'})]
    """
    for name, matchers in _SELECTOR.findall(_without_strings(_GROUPING.sub("", expression))):
        yield name, set(_MATCHER.findall(matchers))


def grouped_by(expression: str) -> set[str]:
    """The labels that an expression groups or matches by."""
    return {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")}


def _without_strings(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


def answered(
    promtool: Path, folder: Path, scrapes: Sequence[Scrape], expressions: Iterable[str]
) -> dict[str, str]:
    """The expressions that promtool finds a value for in the last of `scrapes`, with the values.

    `promtool test rules` evaluates what it is told to expect: it is told to expect nothing, and says what it
    has got instead. Scrapes count as 15 s apart.
    """
    names = {name for one in scrapes for name in one}
    series = [
        {
            "series": f"{name}{{{', '.join(f'{k}={json.dumps(v)}' for k, v in sorted(labels))}}}",
            "values": " ".join(repr(one[name, labels]) if (name, labels) in one else "_" for one in scrapes),
        }
        for name, labels in sorted(names, key=lambda pair: (pair[0], sorted(pair[1])))
    ]
    asked = [
        {"expr": expression, "eval_time": f"{15 * (len(scrapes) - 1)}s", "exp_samples": []}
        for expression in expressions
    ]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": series, "promql_expr_test": asked}],
    }
    file = folder / "scrapes.test.json"  # YAML's superset of JSON is what promtool reads
    file.write_text(json.dumps(document))
    done = subprocess.run(
        [str(promtool), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    found = re.findall(r'expr: ("(?:[^"\\]|\\.)*"), time: \S+,?\s*exp:\s*(\S+)\s*got:\s*(.*)', said)
    assert found or done.returncode == 0, said
    return {json.loads(expression): got for expression, _, got in found}
