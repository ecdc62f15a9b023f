"""Named points of the commit protocol, between any two effects that are visible outside the process. [P]

A `Probe` is called at each of them on the event loop. The node passes `no_probe`; tests pass one that crashes
there, to prove that a crash at any point is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from service.base.types import TopicIdPartition


class CommitStep(Enum):
    """Points at which a `Probe` is called."""

    BEFORE_UPLOAD = "before-upload"
    UPLOADED = "uploaded"
    PROPOSED = "proposed"
    COMMITTED = "committed"
    HEAD_WRITTEN = "head-written"
    PUBLISHED = "published"


Probe = Callable[[CommitStep, TopicIdPartition], None]


def no_probe(step: CommitStep, tip: TopicIdPartition) -> None:
    """Do nothing."""
