"""The cluster as clients are told of it: which brokers there are, by the listener that a client came in by.

Who is a broker is believed from the committed image. A broker that is fenced is not told of, nor one that has
no such listener: a partition that it leads has no leader for who came in by that one. This node itself is
known before its registration is, by where it listens.

Owned by the event loop. What a listener sees is made anew when the image's brokers are others; what answers
hold on to (`Seen.standing`) stays the same object as long as nothing changed that answers about partitions
depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.metadata.controller.partition_change import NOT_KNOWN, UNASSIGNED
from service.metadata.image import BrokerImage, MetadataImage, PartitionImage
from service.metadata.records import NO_LEADER
from service.wire.metadata import MetadataResponseBroker

NOBODY: Final = -1
_ANY_DIRECTORY: Final[frozenset[UUID]] = frozenset()
_NOWHERE: Final = (NOT_KNOWN, UNASSIGNED)
"""What stands for a directory that nobody has told of yet."""


class ToldBroker(NamedTuple):
    """A broker, and where clients of the listener find it."""

    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class Standing(NamedTuple):
    """What answers about partitions depend on."""

    directories: Mapping[int, frozenset[UUID]]
    """of the brokers that can be reached, the directories that they have online; empty: any"""
    elsewhere: frozenset[int]
    """brokers that are alive, and have no such listener"""


class Seen:
    """The brokers as seen by clients of one listener."""

    __slots__ = ("_own_id", "alive", "by_id", "everybody", "in_metadata", "standing")

    def __init__(self, own_id: int, everybody: tuple[ToldBroker, ...], standing: Standing) -> None:
        self._own_id = own_id
        self.everybody = everybody
        """those that have the listener, fenced ones among them, by id"""
        self.alive = tuple(one for one in everybody if not one.is_fenced)
        self.by_id = {one.id: one for one in self.alive}
        self.in_metadata = tuple(
            MetadataResponseBroker(node_id=one.id, host=one.host, port=one.port, rack=one.rack)
            for one in self.alive
        )
        """those who are alive, as Metadata tells of them"""
        self.standing = standing

    def leader(self, leader: int, *, tells_listener: bool = True) -> tuple[int, ErrorCode]:
        """Who leads for these clients, -1 where nobody does, and then the reason.

        Before version 6 Metadata does not know LISTENER_NOT_FOUND.
        """
        if leader in self.by_id:
            return leader, ErrorCode.none
        if tells_listener and leader in self.standing.elsewhere:
            return NO_LEADER, ErrorCode.listener_not_found
        return NO_LEADER, ErrorCode.leader_not_available

    def offline_replicas(self, partition: PartitionImage, *, is_own_offline: bool) -> tuple[int, ...]:
        """Brokers that hold the partition and cannot serve it: gone, fenced, without the listener, or with
        its directory offline; of this node's replica `is_own_offline` tells."""
        known, found = self.standing.directories, []
        for n, replica in enumerate(partition.replicas):
            directories = known.get(replica)
            if directories is None or (replica == self._own_id and is_own_offline):
                found.append(replica)
            elif directories and n < len(partition.directories):
                directory = partition.directories[n]
                if directory not in directories and directory not in _NOWHERE:
                    found.append(replica)
        return tuple(found)


class _Kept(NamedTuple):
    """What a view was made of, and the view."""

    brokers: Mapping[int, BrokerImage]
    epoch: int
    endpoint: tuple[str, int] | None
    seen: Seen


class ClusterView:
    """The cluster as this node tells of it."""

    def __init__(
        self,
        node_id: int,
        rack: str | None,
        image: Callable[[], MetadataImage],
        endpoints: Mapping[str, tuple[str, int]],
        epoch: Callable[[], int],
    ) -> None:
        """`endpoints`: of this node, by listener. `epoch`: of this process's registration, -1 before it."""
        self._node_id = node_id
        self._rack = rack
        self._image = image
        self._endpoints = endpoints
        self._epoch = epoch
        self._kept: dict[str, _Kept] = {}

    def seen_by(self, listener: str) -> Seen:
        """What clients of `listener` see now."""
        brokers, epoch, endpoint = self._image().brokers, self._epoch(), self._endpoints.get(listener)
        kept = self._kept.get(listener)
        if kept is not None and kept.brokers is brokers and kept.epoch == epoch and kept.endpoint == endpoint:
            return kept.seen
        everybody, standing = self._look(listener, brokers, epoch, endpoint)
        if kept is not None and kept.seen.standing == standing:
            standing = kept.seen.standing
        seen = Seen(self._node_id, everybody, standing)
        self._kept[listener] = _Kept(brokers, epoch, endpoint, seen)
        return seen

    def controller_id(self, seen: Seen) -> int:
        """Whom to take for the controller: any broker will do, as it passes on what only the controller can
        do. This one certainly lives, which others may not do any more; -1 where there is none."""
        if any(one.id == self._node_id for one in seen.alive):
            return self._node_id
        return seen.alive[0].id if seen.alive else NOBODY

    def _look(
        self,
        listener: str,
        brokers: Mapping[int, BrokerImage],
        epoch: int,
        endpoint: tuple[str, int] | None,
    ) -> tuple[tuple[ToldBroker, ...], Standing]:
        told: list[ToldBroker] = []
        directories: dict[int, frozenset[UUID]] = {}
        elsewhere: list[int] = []
        for broker_id in sorted({*brokers, self._node_id}):
            broker = brokers.get(broker_id)
            # What is registered of this node may be an earlier process of it.
            fenced = broker is not None and broker.fenced
            place: tuple[str, int] | None
            if broker_id == self._node_id:
                place, rack = endpoint, self._rack
                fenced = fenced and broker is not None and broker.epoch == epoch
            else:
                assert broker is not None
                place, rack = _place(broker, listener), broker.rack
            if place is not None:
                told.append(ToldBroker(broker_id, *place, rack, fenced))
            if fenced:
                continue
            if place is None:
                elsewhere.append(broker_id)
            elif broker is None or broker_id == self._node_id:
                directories[broker_id] = _ANY_DIRECTORY
            else:
                directories[broker_id] = frozenset(broker.log_dirs) or _ANY_DIRECTORY
        return tuple(told), Standing(directories, frozenset(elsewhere))


def _place(broker: BrokerImage, listener: str) -> tuple[str, int] | None:
    return next(((one.host, one.port) for one in broker.endpoints if one.name == listener), None)
