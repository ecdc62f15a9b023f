"""The cluster's brokers as the clients of each listener see them.

Brokers come from the committed image. Clients see no fenced broker and none that lacks their listener: a
partition that such a broker leads has no leader for them. This node is in the views before its registration
is committed, with its own endpoints.

Owned by the event loop. A listener's view is computed again when the image's brokers change. Response caches
compare `ListenerView.availability`, which stays the same object until something changes on which responses
about partitions depend.
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

NO_BROKER: Final = -1
_ANY_DIRECTORY: Final[frozenset[UUID]] = frozenset()
_UNKNOWN_DIRECTORIES: Final = (NOT_KNOWN, UNASSIGNED)
"""Directory ids of replicas whose directory is not assigned or not reported yet."""


class ListenerBroker(NamedTuple):
    """A broker with its address on one listener."""

    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class BrokerAvailability(NamedTuple):
    """State of the brokers on which responses about partitions depend."""

    directories: Mapping[int, frozenset[UUID]]
    """online directories of each broker that clients can reach; empty: all its directories"""
    without_listener: frozenset[int]
    """live brokers that lack the listener"""


class ListenerView:
    """The brokers that clients of one listener see."""

    __slots__ = ("_own_id", "alive", "all_brokers", "availability", "by_id", "in_metadata")

    def __init__(
        self, own_id: int, all_brokers: tuple[ListenerBroker, ...], availability: BrokerAvailability
    ) -> None:
        self._own_id = own_id
        self.all_brokers = all_brokers
        """brokers that have the listener, with fenced ones, sorted by id"""
        self.alive = tuple(one for one in all_brokers if not one.is_fenced)
        self.by_id = {one.id: one for one in self.alive}
        self.in_metadata = tuple(
            MetadataResponseBroker(node_id=one.id, host=one.host, port=one.port, rack=one.rack)
            for one in self.alive
        )
        """the live brokers, as elements of a Metadata response"""
        self.availability = availability

    def leader(self, leader: int, *, has_listener_error: bool = True) -> tuple[int, ErrorCode]:
        """Return the partition leader that these clients can reach, or -1 and the reason.

        Metadata before version 6 has no LISTENER_NOT_FOUND (`has_listener_error`).
        """
        if leader in self.by_id:
            return leader, ErrorCode.none
        if has_listener_error and leader in self.availability.without_listener:
            return NO_LEADER, ErrorCode.listener_not_found
        return NO_LEADER, ErrorCode.leader_not_available

    def offline_replicas(self, partition: PartitionImage, *, is_own_offline: bool) -> tuple[int, ...]:
        """Return the replicas that cannot serve the partition: the broker is unregistered, fenced or without
        the listener, or its directory is offline. `is_own_offline`: this node's replica is offline.
        """
        known, found = self.availability.directories, []
        for n, replica in enumerate(partition.replicas):
            directories = known.get(replica)
            if directories is None or (replica == self._own_id and is_own_offline):
                found.append(replica)
            elif directories and n < len(partition.directories):
                directory = partition.directories[n]
                if directory not in directories and directory not in _UNKNOWN_DIRECTORIES:
                    found.append(replica)
        return tuple(found)


class _CachedView(NamedTuple):
    """A view, with the state from which it was computed."""

    brokers: Mapping[int, BrokerImage]
    epoch: int
    endpoint: tuple[str, int] | None
    view: ListenerView


class ClusterView:
    """Views of the cluster, one for each of this node's listeners."""

    def __init__(
        self,
        node_id: int,
        rack: str | None,
        image: Callable[[], MetadataImage],
        endpoints: Mapping[str, tuple[str, int]],
        epoch: Callable[[], int],
    ) -> None:
        """`endpoints`: this node's, by listener. `epoch` returns the broker epoch of this process, or -1."""
        self._node_id = node_id
        self._rack = rack
        self._image = image
        self._endpoints = endpoints
        self._epoch = epoch
        self._views: dict[str, _CachedView] = {}

    def view_for(self, listener: str) -> ListenerView:
        """Return the current view of `listener`'s clients."""
        brokers, epoch, endpoint = self._image().brokers, self._epoch(), self._endpoints.get(listener)
        old = self._views.get(listener)
        if old is not None and old.brokers is brokers and old.epoch == epoch and old.endpoint == endpoint:
            return old.view
        all_brokers, availability = self._compute_view(listener, brokers, epoch, endpoint)
        if old is not None and old.view.availability == availability:
            availability = old.view.availability
        view = ListenerView(self._node_id, all_brokers, availability)
        self._views[listener] = _CachedView(brokers, epoch, endpoint, view)
        return view

    def controller_id(self, view: ListenerView) -> int:
        """Return the broker that clients should take for the controller, -1 if none is alive. Any broker will
        do, since it forwards requests to the controller; this node is preferred, as it certainly lives.
        """
        if any(one.id == self._node_id for one in view.alive):
            return self._node_id
        return view.alive[0].id if view.alive else NO_BROKER

    def _compute_view(
        self,
        listener: str,
        brokers: Mapping[int, BrokerImage],
        epoch: int,
        endpoint: tuple[str, int] | None,
    ) -> tuple[tuple[ListenerBroker, ...], BrokerAvailability]:
        found_brokers: list[ListenerBroker] = []
        directories: dict[int, frozenset[UUID]] = {}
        without_listener: list[int] = []
        for broker_id in sorted({*brokers, self._node_id}):
            broker = brokers.get(broker_id)
            # The registration of this node may be that of an earlier process.
            fenced = broker is not None and broker.fenced
            address: tuple[str, int] | None
            if broker_id == self._node_id:
                address, rack = endpoint, self._rack
                fenced = fenced and broker is not None and broker.epoch == epoch
            else:
                assert broker is not None
                address, rack = _endpoint_of(broker, listener), broker.rack
            if address is not None:
                found_brokers.append(ListenerBroker(broker_id, *address, rack, fenced))
            if fenced:
                continue
            if address is None:
                without_listener.append(broker_id)
            elif broker is None or broker_id == self._node_id:
                directories[broker_id] = _ANY_DIRECTORY
            else:
                directories[broker_id] = frozenset(broker.log_dirs) or _ANY_DIRECTORY
        return tuple(found_brokers), BrokerAvailability(directories, frozenset(without_listener))


def _endpoint_of(broker: BrokerImage, listener: str) -> tuple[str, int] | None:
    return next(((one.host, one.port) for one in broker.endpoints if one.name == listener), None)
