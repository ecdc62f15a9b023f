"""Rewrites and erasures in CommitCatalog: what brokers send, and what the controller reads of it. [P]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.metadata.controller.erase_control import ErasedNotes
from service.metadata.controller.rewrite_control import RewriteChange
from service.metadata.records import ZERO_UUID, filled_ids
from service.remote.catalog import ErasedPlace, Erasure, Notes, RewriteAnswer, RewriteIntent, RewriteKind
from service.wire import catalog as wire
from service.wire.catalog import CommitCatalogRequest, OrderOp, RewriteOp

_ANSWERS: Final = (
    RewriteAnswer.BEGUN,
    RewriteAnswer.FENCED,
    RewriteAnswer.BUSY,
    RewriteAnswer.UNKNOWN_PARTITION,
)
"""Answers by their number on the wire"""


def rewrite_change(change: RewriteChange) -> wire.CatalogRewrite:
    """Return a rewrite that begins, or is given up, in its wire form."""
    tip, rewrite_id, intent = change
    if intent is None:
        return wire.CatalogRewrite(
            topic_id=tip.topic_id, partition=tip.partition, op=RewriteOp.GIVE_UP, rewrite_id=rewrite_id
        )
    return wire.CatalogRewrite(
        topic_id=tip.topic_id, partition=tip.partition, op=RewriteOp.BEGIN, **intent._asdict()
    )


def rewrites_of(
    request: CommitCatalogRequest, topic_name: Callable[[UUID], str | None]
) -> list[RewriteChange]:
    """Return the rewrites in a request. Raises `RequestError` INVALID_REQUEST for too many, and for what is
    unknown."""
    if len(request.rewrites) > wire.MAX_COMMITS:
        raise _invalid(f"{len(request.rewrites)} rewrites in one request")
    return [_rewrite(one, topic_name) for one in request.rewrites]


def _rewrite(one: wire.CatalogRewrite, topic_name: Callable[[UUID], str | None]) -> RewriteChange:
    topic_id, rewrite_id = one.topic_id or ZERO_UUID, one.rewrite_id or ZERO_UUID
    tip = TopicIdPartition(topic_id, topic_name(topic_id) or "", one.partition)
    if one.op == RewriteOp.GIVE_UP:
        return RewriteChange(tip, rewrite_id)
    if one.op != RewriteOp.BEGIN:
        raise _invalid(f"a rewrite is to be changed by {one.op}")
    try:
        kind = RewriteKind(one.kind)
    except ValueError as e:
        raise _invalid(str(e)) from e
    intent = RewriteIntent(
        rewrite_id, one.base_offset, one.last_offset, kind, one.leader_epoch, one.started_ms
    )
    return RewriteChange(tip, rewrite_id, intent)


def answer_numbers(answers: Iterable[RewriteAnswer]) -> tuple[int, ...]:
    """Return answers to rewrites by their numbers on the wire."""
    return tuple(map(_ANSWERS.index, answers))


def answers_of(numbers: Sequence[int], count: int) -> list[RewriteAnswer]:
    """Return the answers to `count` rewrites. Raises `StorageError` for others."""
    if len(numbers) != count or not all(0 <= number < len(_ANSWERS) for number in numbers):
        raise StorageError(f"the catalog answers {count} rewrites by {list(numbers)}")
    return [_ANSWERS[number] for number in numbers]


def erased_notes(notes: Notes) -> tuple[wire.ErasedNote, ...]:
    """Return notes of clean places in their wire form."""
    return tuple(
        wire.ErasedNote(erasure_id=erasure_id, broker_id=broker_id, topics=_topics(places))
        for (erasure_id, broker_id), places in notes.items()
    )


def _topics(places: Iterable[ErasedPlace]) -> tuple[wire.LoadedTopic, ...]:
    by_topic: dict[UUID, list[wire.LoadedPartition]] = {}
    for topic_id, partition, leader_epoch in sorted(places):
        one = wire.LoadedPartition(partition=partition, leader_epoch=leader_epoch)
        by_topic.setdefault(topic_id, []).append(one)
    return tuple(
        wire.LoadedTopic(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in by_topic.items()
    )


def erased_of(request: CommitCatalogRequest) -> list[ErasedNotes]:
    """Return the notes in a request. Raises `RequestError` INVALID_REQUEST for too many."""
    count = sum(len(topic.partitions) for note in request.erased for topic in note.topics)
    if count > wire.MAX_ERASED_PLACES or len(request.erased) > wire.MAX_ERASURES_IN_REQUEST:
        raise _invalid(f"{len(request.erased)} notes of {count} partitions in one request")
    return [
        ErasedNotes(
            note.erasure_id or ZERO_UUID,
            note.broker_id,
            [
                ErasedPlace(topic.topic_id or ZERO_UUID, one.partition, one.leader_epoch)
                for topic in note.topics
                for one in topic.partitions
            ],
        )
        for note in request.erased
    ]


def started(erasure: Erasure) -> wire.CatalogErasure:
    """Return the start of an order in its wire form."""
    return wire.CatalogErasure(
        op=OrderOp.STARTED,
        id=erasure.id,
        key=erasure.key,
        stored_size=erasure.stored_size,
        crc32c=erasure.crc32c,
        keys=erasure.keys,
        topics=erasure.topics,
        started_ms=erasure.started_ms,
    )


def started_of(change: wire.CatalogErasure) -> Erasure:
    """Return the order that starts."""
    return Erasure(
        change.id or ZERO_UUID,
        change.key,
        change.stored_size,
        change.crc32c,
        change.keys,
        filled_ids(change.topics),
        change.started_ms,
    )


def erasures_of(request: CommitCatalogRequest) -> Sequence[wire.CatalogErasure]:
    """Return the changes of orders in a request. Raises `RequestError` INVALID_REQUEST for too many, and for
    unknown ones."""
    if len(request.erasures) > wire.MAX_ERASURES_IN_REQUEST:
        raise _invalid(f"{len(request.erasures)} orders in one request")
    for change in request.erasures:
        if change.op not in _ERASURE_OPS:
            raise _invalid(f"an order is to be changed by {change.op}")
    return request.erasures


_ERASURE_OPS: Final = frozenset(map(int, OrderOp))


def _invalid(what: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, what)
