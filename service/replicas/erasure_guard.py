"""Guards what erasures have done: what is not served, and not copied to the bucket, until it is clean.

A restored cluster brings its open orders along: a chain may have their records until the bucket part of the
order is over there, so what is only in the bucket is not served until the metadata says that it is. And once
it is over, a log that lacks the order, as its disk comes back from before it, is not copied until it has
carried it out. Once the order is done, nothing of such a log is shown to consumers, or saved in tails.
Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from service.hot.erased_orders import ErasedLine
from service.hot.state import LogState
from service.metadata.image import Erased, MetadataImage
from service.remote.catalog import IN_BUCKET, Erasure
from service.remote.format.cut_codec import Place


class ErasureGuard:
    """Answers for each partition, by the newest image."""

    def __init__(self, node_id: int, image: Callable[[], MetadataImage]) -> None:
        self._node_id = node_id
        self._image = image
        self._known: Mapping[UUID, Erasure] = {}
        self._by_topic: dict[UUID, list[Erasure]] = {}
        self._notes: Mapping[UUID, Erased] = {}
        self._clean: dict[Place, Mapping[UUID, ErasedLine]] = {}
        """lines of logs that are not from before an order that is done, by the orders and notes of now"""

    def _orders(self, topic_id: UUID) -> Sequence[Erasure]:
        image = self._image()
        if image.erasures is not self._known:
            self._index(image.erasures)
        if image.erased is not self._notes:
            self._notes = image.erased
            self._clean.clear()
        return self._by_topic.get(topic_id, ())

    def _index(self, erasures: Mapping[UUID, Erasure]) -> None:
        """Index the orders by topic; those that have not changed are not looked at again."""
        before, self._known = self._known, erasures
        self._clean.clear()
        for order_id, order in before.items():
            if erasures.get(order_id) is not order:
                for topic_id in order.topics:
                    left = [one for one in self._by_topic.pop(topic_id) if one is not order]
                    if left:
                        self._by_topic[topic_id] = left
        for order_id, order in erasures.items():
            if before.get(order_id) is not order:
                for topic_id in order.topics:
                    self._by_topic.setdefault(topic_id, []).append(order)

    def hides_archive(self, topic_id: UUID, partition: int) -> bool:
        """Return whether the partition's objects may still have records of a restored order."""
        orders = self._orders(topic_id)
        return any(one.is_restored and not self._is_over(one, topic_id, partition) for one in orders)

    def may_copy(self, topic_id: UUID, partition: int, log: LogState) -> bool:
        """Return whether segments of `log` may be copied: it has carried out what the bucket has."""
        orders = self._orders(topic_id)
        return all(log.has_erased(one.id) or not self._is_over(one, topic_id, partition) for one in orders)

    def has_erased_records(self, topic_id: UUID, partition: int, log: LogState) -> bool:
        """Return whether `log` is from before an order that is done: this broker has noted that it carried it
        out, and the log does not know of it. A replica that was assigned since has no note: it began with
        what clean logs have."""
        orders = self._orders(topic_id)
        if not orders:
            return False
        lines = log.erased.lines
        if self._clean.get((topic_id, partition)) is lines:
            return False
        if any(not one.is_open and self._is_of_before(one, topic_id, partition, log) for one in orders):
            return True
        if all(line.leader_epoch < 0 for line in lines.values()):  # others go by what is appended
            self._clean[topic_id, partition] = lines
        return False

    def _is_of_before(self, order: Erasure, topic_id: UUID, partition: int, log: LogState) -> bool:
        notes = self._image().erased.get(order.id)
        is_told = notes is not None and self._node_id in notes.get((topic_id, partition), ())
        return is_told and not log.has_erased(order.id) and not log.erased.was_cut(order.id)

    def _is_over(self, order: Erasure, topic_id: UUID, partition: int) -> bool:
        """Return whether the order's bucket part is over in the partition."""
        notes = self._image().erased.get(order.id)
        is_told = notes is not None and IN_BUCKET in notes.get((topic_id, partition), ())
        return is_told or not order.is_open
