"""Answers of one broker to Erasures (`wire/erasures.py`): orders to erase keys, and what is left of them.

The keeper of the prefix takes and cancels orders. Every broker tells what it knows of them, and counts
records of an order's keys in its own logs, in the objects of the partitions that it leads, and, as keeper, in
tails: one part for each request. Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.lru_cache import LruCache
from service.base.slices import Slice
from service.config.settings import BrokerConfig
from service.metadata.controller.erase_control import compacted, start_erasure
from service.metadata.image import MetadataImage
from service.partition.partition import Partition
from service.remote.catalog import IN_BUCKET, Erasure
from service.remote.format.cut_codec import Place
from service.remote.format.erase_codec import ErasureOrder, decode_erasure
from service.remote.opened_order import OpenOrder, opened
from service.replicas.dynamic_config import topic_settings
from service.serving.control_plane import ControlPlane
from service.serving.topic_rights import TopicRights
from service.tiering.erasing.archive_progress import ArchiveWork
from service.tiering.erasing.counting import (
    CountedPart,
    count_in_chain,
    count_in_log,
    count_in_tails,
)
from service.tiering.erasing.leftovers import VersionsLeft
from service.tiering.erasing.order_keeper import OrderKeeper
from service.tiering.manager import TieringManager
from service.wire.erasure_counts import END
from service.wire.erasures import ErasureOp, ErasureScope, ErasuresRequest, ErasuresResponse

_MOST_PROBLEMS: Final = 1_000
"""Most problems that one broker tells."""
_MOST_INLINE: Final = 2
"""Orders that come with requests and stay in memory for the next one."""


class ErasureHost(Protocol):
    """The node, as far as these answers need it (`serving.request_host.Broker`)."""

    @property
    def image(self) -> MetadataImage: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def plane(self) -> ControlPlane: ...
    @property
    def replicas(self) -> HeldReplicas: ...
    @property
    def erasure_waits(self) -> Mapping[tuple[UUID, tuple[UUID, int]], str]: ...


class HeldReplicas(Protocol):
    """Partitions of which this node has a replica."""

    def get(self, topic_id: UUID, partition: int, /) -> Partition | None: ...


class ErasureAnswers:
    """Answers of one broker about orders to erase keys."""

    def __init__(self, node_id: int, host: ErasureHost, manager: TieringManager) -> None:
        self._node_id = node_id
        self._host = host
        self._manager = manager
        self._inline: LruCache[bytes, OpenOrder] = LruCache(_MOST_INLINE)

    async def answer(self, request: ErasuresRequest, rights: TopicRights) -> ErasuresResponse:
        """Carry a request out."""
        try:
            return await self._answer(request, rights)
        except RequestError as e:
            return failed(e.code, str(e))
        except CorruptionError as e:
            return failed(ErrorCode.kafka_storage_error, str(e))
        except StorageError as e:
            return failed(ErrorCode.coordinator_not_available, str(e))

    async def _answer(self, request: ErasuresRequest, rights: TopicRights) -> ErasuresResponse:
        op = request.op
        if op == ErasureOp.LIST:
            return ErasuresResponse(error_code=ErrorCode.none, document=await self._list(rights))
        if op == ErasureOp.START:
            keeper, order = self._keeper(), await self._given(request)
            known = self._host.image.erasures.get(order.id)
            if known is None:
                known = await keeper.start(await self._checked(order, rights))
            return done(self._row(known, rights))
        if op == ErasureOp.CANCEL:
            return done(self._row(await self._cancel(_id_of(request), rights), rights))
        return await self._count(request, rights)

    def _keeper(self) -> OrderKeeper:
        orders = self._manager.orders
        if orders is None or not self._manager.keeps_prefix:
            raise RequestError(ErrorCode.not_coordinator, "this broker does not keep the prefix")
        return orders

    async def _cancel(self, erasure_id: UUID, rights: TopicRights) -> Erasure:
        keeper, image = self._keeper(), self._host.image
        erasure = image.erasures.get(erasure_id)
        rights.check(() if erasure is None else erasure.topics, image, rights.delete)
        return await keeper.cancel(erasure_id)

    # -- a new order

    async def _given(self, request: ErasuresRequest) -> ErasureOrder:
        """Return the order in a request, which has to be this cluster's. A thread decodes it: it may have
        100,000 keys."""
        try:
            order = await self._manager.context.pool.run(decode_erasure, bytes(request.order or b""))
        except CorruptionError as e:
            raise RequestError(ErrorCode.invalid_request, f"not an order to erase keys: {e}") from e
        if order.cluster_id != self._host.cluster_id or order.id != _id_of(request):
            raise RequestError(ErrorCode.invalid_request, "the order is of another cluster, or another one")
        return order

    async def _checked(self, order: ErasureOrder, rights: TopicRights) -> ErasureOrder:
        """Return the order with this node's time and topics' names of now.

        Raises `RequestError` where one of the topics is not there, or its records are not erased so.
        """
        image, topics, piece = self._host.image, [], Slice()
        for one in order.topics:
            if piece.is_over():
                await piece.next_turn()
            topic = image.topics_by_id.get(one.topic_id)
            if topic is None:
                raise RequestError(ErrorCode.unknown_topic_id, f"topic {one.topic_id}")
            rights.check((one.topic_id,), image, rights.delete)
            if len(one.ends) > len(topic.partitions):
                raise RequestError(
                    ErrorCode.invalid_request,
                    f"topic {topic.name} has {len(topic.partitions)} partitions, the order {len(one.ends)}",
                )
            if topic_settings(image, topic.name, self._host.config).is_compacted:
                # Also by a default in this node's file, which the controller does not have.
                raise compacted(topic.name)
            topics.append(one._replace(name=topic.name))
        stamp = self._manager.stamp()
        # Before anything is written: the controller refuses the same.
        await piece.go_on(
            start_erasure(
                image,
                Erasure(order.id, order.key, 1, 0, order.keys, tuple(one.topic_id for one in topics), 0),
                needs_level=self._host.plane.prefix_owner is not None,
            )
        )
        return order._replace(topics=tuple(topics), started_ms=stamp.written_ms, stamp=stamp)

    # -- what is known

    async def _list(self, rights: TopicRights) -> str:
        """Return what this broker knows of all orders, as JSON. An order has up to thousands of topics, so
        each is a step of its own."""
        piece, rows = Slice(), list[str]()
        for _, one in sorted(self._host.image.erasures.items()):
            if piece.is_over():
                await piece.next_turn()
            rows.append(json.dumps(self._row(one, rights)))
        others = {
            "broker": self._node_id,
            "is_keeper": self._manager.keeps_prefix,
            "progress": [
                {"order": str(order_id), **_progress(one.total)}
                for order_id, one in sorted(self._manager.metrics.archive_work.items())
            ],
            "problems": [
                {
                    "order": str(order_id),
                    "topic": self._name(topic_id, rights),
                    "partition": partition,
                    "why": why,
                }
                for (order_id, (topic_id, partition)), why in islice(self._problems(), _MOST_PROBLEMS)
            ],
        }
        return f'{json.dumps(others)[:-1]}, "orders": [{", ".join(rows)}]}}'

    def _problems(self) -> Iterator[tuple[tuple[UUID, Place], str]]:
        """Yield why orders wait in the archives that this broker leads, and in its logs."""
        work = self._manager.bucket_work
        yield from () if work is None else work.problems.items()
        for key, why in self._host.erasure_waits.items():
            yield key, f"broker {self._node_id}: {why}"

    def _row(self, erasure: Erasure, rights: TopicRights) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": str(erasure.id),
            "state": "open" if erasure.is_open else "done",
            "started_ms": erasure.started_ms,
            "done_ms": None if erasure.is_open else erasure.done_ms,
            "keys": erasure.keys,
            "topics": [self._topic(one, rights) for one in erasure.topics],
            "is_restored": erasure.is_restored,
        }
        orders = self._manager.orders
        if orders is not None and self._manager.keeps_prefix:
            row |= self._known(orders, erasure, rights)
        return row

    def _known(self, orders: OrderKeeper, erasure: Erasure, rights: TopicRights) -> dict[str, Any]:
        standing = orders.standing(erasure)
        left, remains, cuts = standing.left, standing.remains, standing.cuts
        versions = VersionsLeft() if remains is None else remains.versions
        return {
            "waits": standing.why,
            "replicas": left.all_replicas,
            "replicas_left": left.replicas,
            "archives": left.all_chains,
            "archives_left": left.chains,
            "left": [
                {
                    "topic": self._name(one.topic_id, rights),
                    "partition": one.partition,
                    "broker": None if one.broker_id == IN_BUCKET else one.broker_id,
                }
                for one in left.named
            ],
            "cuts_left": len(cuts),
            "cuts_from_ms": cuts[0].at_ms if cuts else None,
            "cuts_until_ms": cuts[-1].at_ms if cuts else None,
            "tails": standing.tails,
            "tails_clean": standing.clean_tails,
            "grace_until_ms": None if erasure.is_open else standing.grace_until_ms,
            "remains": [] if remains is None else list(remains.named),
            "remaining_objects": 0 if remains is None else remains.objects,
            "versions_left": versions.left,
            "versions_until_ms": versions.until_ms,
            "versions_unknown": versions.unknown or None,
            "locked": list(versions.locked),
            "locked_objects": versions.locked_count,
        }

    def _topic(self, topic_id: UUID, rights: TopicRights) -> dict[str, Any]:
        image = self._host.image
        row: dict[str, Any] = {"id": str(topic_id), "name": self._name(topic_id, rights)}
        if topic_id in image.topics_by_id:
            return row
        return {**row, "is_deleted": True, "has_objects": topic_id in image.tombstones}

    def _name(self, topic_id: UUID, rights: TopicRights) -> str:
        """Return a topic's name; its id where it is gone, or the client may not describe it."""
        topic = self._host.image.topics_by_id.get(topic_id)
        return str(topic_id) if topic is None or not rights.shows(topic.name) else topic.name

    # -- counting

    async def _count(self, request: ErasuresRequest, rights: TopicRights) -> ErasuresResponse:
        """Count records of an order's keys in one part of what this broker answers for. Whoever counts the
        records of a key has read the topic."""
        order = await self._in_hand(request)
        context, scope, image = self._manager.context, request.scope, self._host.image
        if scope == ErasureScope.TAILS:
            rights.check((one.topic_id for one in order.order.topics), image, rights.read)
            tails = await self._keeper().named_tails()
            count = partial(count_in_tails, context.store, tails, request.from_offset, order)
            return counted(await context.pool.watch(count))
        place = request.topic_id or UUID(int=0), request.partition
        rights.check(place[:1], image, rights.read)
        partition = self._host.replicas.get(*place)
        if partition is None:
            raise RequestError(ErrorCode.not_leader_or_follower, f"no replica of {place[0]}/{place[1]}")
        if scope == ErasureScope.LOCAL:
            runs = partition.log.runs.runs_from(
                max(request.from_offset, partition.log.local_log_start_offset)
            )
            count_local = partial(
                count_in_log,
                runs,
                partition.log.log_end_offset,
                order.end(*place),
                request.from_offset,
                order,
            )
            return counted(await context.pool.watch(count_local))
        if not partition.is_leader:
            raise RequestError(ErrorCode.not_leader_or_follower, f"{partition.tip} has another leader")
        count_objects = partial(
            count_in_chain,
            context.store,
            context.chains,
            partition.tip,
            context.catalog.entry(*place),
            order,
            request.from_offset,
            reads_objects=request.op == ErasureOp.VERIFY,
        )
        return counted(await context.pool.watch(count_objects))

    async def _in_hand(self, request: ErasuresRequest) -> OpenOrder:
        """Return the order that comes with a request, or that the metadata has under its id."""
        if request.order:
            data = bytes(request.order)
            known = self._inline.get(data)
            if known is None:
                order = await self._given(request)
                known = await self._manager.context.pool.run(opened, order)
                self._inline.put(data, known, 1)
            return known
        erasure = self._host.image.erasures.get(_id_of(request))
        if erasure is None:
            raise RequestError(ErrorCode.resource_not_found, f"there is no order {request.id}")
        return await self._manager.documents.open(erasure)


def _progress(work: ArchiveWork) -> dict[str, Any]:
    """Return how far an order is in the archives that a broker leads."""
    return {
        "objects": {"left": work.left, "looked_at": work.looked, "rewritten": work.rewritten},
        "bytes": {"left": work.left_size, "looked_at": work.looked_size, "rewritten": work.rewritten_size},
    }


def _id_of(request: ErasuresRequest) -> UUID:
    if request.id is None or not request.id.int:
        raise RequestError(ErrorCode.invalid_request, "an order has an id")
    return request.id


def done(document: Mapping[str, Any]) -> ErasuresResponse:
    """Return an answer that is a document."""
    return ErasuresResponse(error_code=ErrorCode.none, document=json.dumps(document))


def counted(part: CountedPart) -> ErasuresResponse:
    """Return the answer for a part that was counted."""
    return ErasuresResponse(
        error_code=ErrorCode.none,
        document=json.dumps(part.counted._asdict()),
        next_offset=part.next_offset,
    )


def failed(code: ErrorCode, message: str) -> ErasuresResponse:
    """Return an error."""
    return ErasuresResponse(error_code=code, error_message=message, next_offset=END)
