"""Guards what erasures have done: what is not served, and not copied to the bucket, until it is clean.

A restored cluster brings its open orders along: a chain may have their records until the bucket part of the
order is over there, so what is only in the bucket is not served until the metadata says that it is. And once
it is over, a log that lacks the order, as its disk comes back from before it, is not copied until it has
carried it out. Once the order is done, nothing of such a log is shown to consumers, or saved in tails.
Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from service.hot.log import LocalLog
from service.metadata.image import MetadataImage
from service.remote.catalog import IN_BUCKET, Erasure


class ErasureGuard:
    """Answers for each partition, by the newest image."""

    def __init__(self, node_id: int, image: Callable[[], MetadataImage]) -> None:
        self._node_id = node_id
        self._image = image
        self._known: Mapping[UUID, Erasure] | None = None
        self._by_topic: dict[UUID, list[Erasure]] = {}

    def _orders(self, topic_id: UUID) -> list[Erasure]:
        erasures = self._image().erasures
        if erasures is not self._known:
            self._known, self._by_topic = erasures, {}
            for one in erasures.values():
                for concerned in one.topics:
                    self._by_topic.setdefault(concerned, []).append(one)
        return self._by_topic.get(topic_id, [])

    def hides_archive(self, topic_id: UUID, partition: int) -> bool:
        """Return whether the partition's objects may still have records of a restored order."""
        orders = self._orders(topic_id)
        return any(one.is_restored and not self._is_over(one, topic_id, partition) for one in orders)

    def may_copy(self, topic_id: UUID, partition: int, log: LocalLog) -> bool:
        """Return whether segments of `log` may be copied: it has carried out what the bucket has."""
        orders = self._orders(topic_id)
        return all(
            log.state.has_erased(one.id) or not self._is_over(one, topic_id, partition) for one in orders
        )

    def has_erased_records(self, topic_id: UUID, partition: int, log: LocalLog) -> bool:
        """Return whether `log` is from before an order that is done: this broker has noted that it carried it
        out, and the log does not know of it. A replica that was assigned since has no note: it began with
        what clean logs have."""
        orders = self._orders(topic_id)
        return bool(orders) and any(
            not one.is_open and self._is_of_before(one, topic_id, partition, log) for one in orders
        )

    def _is_of_before(self, order: Erasure, topic_id: UUID, partition: int, log: LocalLog) -> bool:
        state, notes = log.state, self._image().erased.get(order.id)
        is_told = notes is not None and self._node_id in notes.get((topic_id, partition), ())
        return is_told and not state.has_erased(order.id) and not state.erased.was_cut(order.id)

    def _is_over(self, order: Erasure, topic_id: UUID, partition: int) -> bool:
        """Return whether the order's bucket part is over in the partition."""
        notes = self._image().erased.get(order.id)
        is_told = notes is not None and IN_BUCKET in notes.get((topic_id, partition), ())
        return is_told or not order.is_open
