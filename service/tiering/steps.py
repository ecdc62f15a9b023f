"""Named points of the commit protocol, between any two effects that the world can see. [P]

A `Probe` is called at each of them on the event loop. The node passes one that does nothing; tests pass
one that crashes there, which is how "safe to be cut off anywhere" is proved.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from service.base.types import TopicIdPartition


class Step(Enum):
    """Where a partition's work stands."""

    BEFORE_UPLOAD = "before-upload"
    UPLOADED = "uploaded"
    PROPOSED = "proposed"
    COMMITTED = "committed"
    HEAD_WRITTEN = "head-written"
    PUBLISHED = "published"


Probe = Callable[[Step, TopicIdPartition], None]


def no_probe(step: Step, tip: TopicIdPartition) -> None:
    """Nothing to do here."""
