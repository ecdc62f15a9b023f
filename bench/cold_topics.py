"""Topics of one partition whose records are in remote storage alone, but for the last segment."""

from __future__ import annotations

from typing import Final

from bench import load
from tests.support.tiers import settle

COUNT: Final = 8
ALONE: Final = "cold-alone"
"""A topic with as many bytes as the others together, for one client."""

MOST_SEGMENT_BYTES: Final = 32 << 20


def segment_bytes(megabytes: int) -> int:
    """Return the size of segments of which a topic has at least two: the active one stays on the node."""
    return min(MOST_SEGMENT_BYTES, megabytes * 1_000_000 // 2)


class ColdTopics:
    """The topics of one node, with how many batches of each can be read from remote storage."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes
        self.names = [f"cold-{number}" for number in range(COUNT)]
        self.batches: dict[str, int] = {}
        self.batch_bytes = 0

    def fill_in(self, bootstrap: str) -> None:
        """Write the topics, and return when the node has nothing of them but the last segment."""
        half = self.megabytes // 2
        sizes = {ALONE: half} | dict.fromkeys(self.names, half // COUNT)
        for name, megabytes in sizes.items():
            load.create(
                bootstrap,
                name,
                remote_storage_enable="true",
                segment_bytes=str(segment_bytes(megabytes)),
                local_retention_bytes="1",
            )
            self.batch_bytes, _ = load.fill(bootstrap, name, megabytes)
        for name in sizes:
            self.batches[name] = settle(bootstrap, name, 0, 120) // load.BATCH_RECORDS
