"""Metrics of the metadata log: plain integers and histograms, which the metrics endpoint reads. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.metrics import Histogram


@dataclass(slots=True, eq=False)
class MetadataMetrics:
    """Metrics of a node's metadata log. Written on the event loop."""

    batches: int = 0
    appended_bytes: int = 0
    snapshot_time: Histogram = field(default_factory=Histogram)
    """Duration of writing a snapshot, in seconds."""
    snapshot_errors: int = 0
    elections: int = 0
    """elections of another leader of a partition, since the node has known the metadata"""
    unclean_elections: int = 0
    """those of a leader that may lack committed records"""
