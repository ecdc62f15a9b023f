"""The partitions that this node holds, by name and by id. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.partition.partition import Partition


class Replicas:
    """Registry of online partitions. Both keys of a partition lie in one dict: produce and fetch look it up
    every time.
    """

    def __init__(self) -> None:
        self._online: dict[tuple[str | UUID, int], Partition] = {}

    def add(self, partition: Partition) -> None:
        tip = partition.tip
        self._online[tip.topic, tip.partition] = partition
        self._online[tip.topic_id, tip.partition] = partition

    def remove(self, partition: Partition) -> None:
        tip = partition.tip
        for key in ((tip.topic_id, tip.partition), (tip.topic, tip.partition)):
            # A topic of the same name may have been created anew in the same change of the image.
            if self._online.get(key) is partition:
                del self._online[key]

    def __iter__(self) -> Iterator[Partition]:
        return iter([one for key, one in self._online.items() if isinstance(key[0], UUID)])

    def get(self, topic_id: UUID, partition: int) -> Partition | None:
        return self._online.get((topic_id, partition))

    def find(self, topic: str | UUID, partition: int) -> Partition:
        """The partition by its topic's name or id, as the request names it.

        `RequestError` UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID where no topic has that id.
        """
        found = self._online.get((topic, partition))
        if found is not None:
            return found
        unknown_id = isinstance(topic, UUID) and (topic, 0) not in self._online
        code = ErrorCode.unknown_topic_id if unknown_id else ErrorCode.unknown_topic_or_partition
        raise RequestError(code, f"no partition {topic}-{partition} here")
