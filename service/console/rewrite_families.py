"""Metrics of rewrites of the bucket: runs of a chain that became other objects. [P]"""

from __future__ import annotations

from typing import Final

from service.console.family import counter as _counter
from service.console.family import gauge as _gauge

REWRITES: Final = (
    _counter(
        "rewrite_runs",
        "Runs of neighbouring objects that this broker, as their leader, has published as other objects, by "
        "rule: merge or erase.",
        "rule",
    ),
    _counter("rewrite_objects_before", "Objects that those runs had.", "rule"),
    _counter("rewrite_objects_after", "Objects that took their place.", "rule"),
    _counter("rewrite_before_bytes", "Bytes of the objects that those runs had.", "rule"),
    _counter("rewrite_after_bytes", "Bytes of the objects that took their place.", "rule"),
    _counter(
        "rewrite_read_bytes",
        "Bytes that this broker's own worker has read from the bucket; what local logs have is read there.",
    ),
    _counter(
        "rewrite_failures",
        "Runs that this broker's own worker could not make or publish; each is planned again.",
    ),
    _counter(
        "rewrite_refused",
        "Reports of workers, here or outside, that could not be published: the chain had changed, or they "
        "were wrong.",
    ),
    _counter(
        "rewrite_given_up",
        "Intents that ended without a commit: the rewrite failed, or its worker fell silent.",
    ),
    _gauge("rewrite_running", "Runs that this broker's own worker makes or publishes now."),
)
