"""Intents of rewrites: leaders begin them before the first object is written, and give them up. [P]

A rewrite ends with the commit that carries its id (`catalog_control`), or with what `rewrites_delta` replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.types import TopicIdPartition
from service.metadata.controller.cluster_control import check_same_process
from service.metadata.controller.decision import ControllerResult, decided
from service.metadata.controller.requests import CatalogSender
from service.metadata.features import why_without_rewrites
from service.metadata.image import MetadataImage, PartitionImage, Place, live_rewrite
from service.metadata.image_frames import rewrite_record
from service.metadata.records import MetadataRecord, RemoveRewriteRecord
from service.remote.catalog import RewriteAnswer, RewriteIntent, RewriteKind


class RewriteChange(NamedTuple):
    """A rewrite that begins, with its intent; or one that is given up, without."""

    tip: TopicIdPartition
    rewrite_id: UUID
    intent: RewriteIntent | None = None


def change_rewrites(
    image: MetadataImage,
    changes: Sequence[RewriteChange],
    *,
    sender: CatalogSender | None = None,
    needs_level: bool = False,
) -> Steps[ControllerResult[list[RewriteAnswer]]]:
    """Decide each change in order, in steps; a refused one does not affect the others.

    `sender` is the broker process that leads the partitions, None for this node's. What is given up is
    answered BEGUN, also where it was gone. `needs_level`: require the feature level of rewrites.

    Raises `RequestError`, and nothing is written: STALE_BROKER_EPOCH for a process that was replaced,
    UNSUPPORTED_VERSION below that level, INVALID_REQUEST for an intent that is invalid in itself.
    """
    check_allowed(image, sender, needs_level=needs_level)
    changed: dict[Place, RewriteIntent | None] = {}
    records: list[MetadataRecord] = []
    answers = []
    for tip, rewrite_id, intent in changes:
        yield
        place = (tip.topic_id, tip.partition)
        partition = image.partition(*place)
        live = changed[place] if place in changed else live_rewrite(image, place)
        if intent is not None:
            answer = yield from _begin(image, tip, partition, intent, live, sender)
            if answer is RewriteAnswer.BEGUN and live is None:
                changed[place] = intent
                records.append(rewrite_record(place, intent))
        else:
            answer = _led(partition, sender)
            if answer is RewriteAnswer.BEGUN and live is not None and live.rewrite_id == rewrite_id:
                changed[place] = None
                record = RemoveRewriteRecord(
                    topic_id=tip.topic_id, partition_id=tip.partition, rewrite_id=rewrite_id
                )
                records.append(record)
        answers.append(answer)
    return decided(records, answers)


def _begin(
    image: MetadataImage,
    tip: TopicIdPartition,
    partition: PartitionImage | None,
    intent: RewriteIntent,
    live: RewriteIntent | None,
    sender: CatalogSender | None,
) -> Steps[RewriteAnswer]:
    reason = intent.malformed()
    is_again = live is not None and live.is_again(intent)
    if reason is None and live is not None and live.rewrite_id == intent.rewrite_id and not is_again:
        reason = f"its id is that of another rewrite, of {live.base_offset} to {live.last_offset}"
    if reason is not None:
        raise RequestError(ErrorCode.invalid_request, f"rewrite of {tip}: {reason}")
    led = _led(partition, sender)
    if led is not RewriteAnswer.BEGUN or partition is None:
        return led
    if intent.leader_epoch != partition.leader_epoch:
        return RewriteAnswer.FENCED
    if live is not None:
        return RewriteAnswer.BEGUN if is_again else RewriteAnswer.BUSY
    entry = image.remote.get((tip.topic_id, tip.partition))
    if entry is None or not entry.start_offset <= intent.last_offset < entry.end_offset:
        return RewriteAnswer.BUSY  # the chain does not have these offsets, or not any more
    is_erased = False
    for erasure in image.erasures.values():
        yield  # an order may have thousands of topics
        is_erased = is_erased or (erasure.is_open and tip.topic_id in erasure.topics)
    if is_erased != (intent.kind is RewriteKind.ERASE):
        return RewriteAnswer.BUSY
    return RewriteAnswer.BEGUN


def _led(partition: PartitionImage | None, sender: CatalogSender | None) -> RewriteAnswer:
    """Return BEGUN where the sender leads the partition."""
    if partition is None:
        return RewriteAnswer.UNKNOWN_PARTITION
    if sender is not None and partition.leader != sender.broker_id:  # invariant T16: it was deposed
        return RewriteAnswer.FENCED
    return RewriteAnswer.BEGUN


def check_allowed(image: MetadataImage, sender: CatalogSender | None, *, needs_level: bool) -> None:
    """Raise `RequestError` STALE_BROKER_EPOCH for a `sender` that was replaced, and UNSUPPORTED_VERSION where
    the cluster's level does not allow rewrites and erasures."""
    if sender is not None:
        check_same_process(image, *sender)
    reason = why_without_rewrites(image.features) if needs_level else None
    if reason is not None:
        raise RequestError(ErrorCode.unsupported_version, reason)
