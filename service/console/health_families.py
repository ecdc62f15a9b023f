"""Metrics of a node's findings: one series for each kind of finding, whatever is wrong. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from service.console.family import gauge
from service.console.sample import Sample
from service.health.kinds import KINDS
from service.health.readiness import NodeHealth

HEALTH: Final = (
    gauge(
        "health_findings",
        "Findings of this node about itself and its cluster now, by kind (a heading of health.md) and "
        "severity (notice, warning, critical); 0 for all that is well.",
        "finding", "severity",
    ),
    gauge(
        "health_metadata_age_seconds",
        "Time since the quorum has confirmed this node's metadata; stale above broker.session.timeout.ms.",
    ),
)  # fmt: skip


def of_health(health: NodeHealth) -> Iterator[Sample]:
    """Yield a sample for each kind."""
    counts = Counter(one.anchor for one in health.findings)
    for kind in KINDS:
        yield Sample("firn_health_findings", counts[kind.anchor], (kind.anchor, kind.severity.name.lower()))
