"""Remote catalog: commits by compare-and-set, tombstones, and tails of a restore that are loaded. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.activation import has_catalog
from service.metadata.controller.cluster_control import check_same_process
from service.metadata.controller.decision import ControllerResult, decided
from service.metadata.controller.requests import CatalogSender, ResourceType
from service.metadata.features import CATALOG_VERSION
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.records import (
    MetadataRecord,
    NoOpRecord,
    RemoteLogRecord,
    RemoveRestoredTailRecord,
    RemoveRewriteRecord,
    RemoveTombstoneRecord,
)
from service.remote.catalog import (
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    LoadedTail,
    RewriteIntent,
    decide_commit,
)


def commit_catalog(
    image: MetadataImage,
    commits: Sequence[CatalogCommit],
    *,
    sender: CatalogSender | None = None,
    needs_level: bool = False,
) -> ControllerResult[list[CatalogResult]]:
    """Decide each commit, in order; a later one for the same partition sees an earlier one's result.

    `sender` is the broker process that leads the partitions, None for this node's: a partition that another
    broker leads is FENCED. An empty list of commits from a sender is a barrier: a no-op record is written,
    and once it is committed, so is everything before it. `needs_level`: require the feature level of the
    catalog.

    Raises `RequestError`, and nothing is written: STALE_BROKER_EPOCH for a process that was replaced,
    UNSUPPORTED_VERSION below that level, INVALID_REQUEST for an entry that is invalid in a chain.
    """
    if sender is not None:
        check_same_process(image, *sender)
        if not commits:
            return ControllerResult((newest(NoOpRecord()),), [])
    if needs_level and not has_catalog(image):
        raise RequestError(ErrorCode.unsupported_version, f"The cluster's level of {CATALOG_VERSION} is 0.")
    entries: dict[tuple[UUID, int], CatalogEntry] = {}
    intents: dict[tuple[UUID, int], RewriteIntent | None] = {}
    records: list[MetadataRecord] = []
    results = []
    for tip, previous_version, entry, rewrite_id in commits:
        partition = image.partition(tip.topic_id, tip.partition)
        if partition is None:
            results.append(CatalogResult.UNKNOWN_PARTITION)
            continue
        if sender is not None and partition.leader != sender.broker_id:  # invariant T16: it was deposed
            results.append(CatalogResult.FENCED)
            continue
        key = (tip.topic_id, tip.partition)
        current = entries.get(key) or image.remote.get(key)
        try:
            result = decide_commit(
                current,
                previous_version=previous_version,
                entry=entry,
                leader_epoch=partition.leader_epoch,
                rewrite_id=rewrite_id,
                intent=intents.get(key, image.rewrites.get(key)),
            )
        except ValueError as e:
            raise RequestError(ErrorCode.invalid_request, f"remote catalog of {tip}: {e}") from e
        is_given_up = result is CatalogResult.COMMITTED and entry != current and entry.is_given_up
        if is_given_up and not _gives_up_archive(image, tip.topic_id):
            result = CatalogResult.VERSION_CONFLICT  # tiering was enabled again meanwhile
        results.append(result)
        if result is CatalogResult.COMMITTED and entry != current:
            entries[key] = entry
            records.append(remote_log_record(*key, entry))
            if rewrite_id is not None:
                intents[key] = None
                records.append(
                    RemoveRewriteRecord(topic_id=key[0], partition_id=key[1], rewrite_id=rewrite_id)
                )
    return decided(records, results)


def tails_loaded(
    image: MetadataImage, loaded: Iterable[LoadedTail], *, sender: CatalogSender | None = None
) -> ControllerResult[None]:
    """Note that restored partitions have their tails: they take records from now on.

    Only the leader of now, in its epoch, says so: the log of an earlier one may have been cut since. Others,
    and partitions that load nothing, are skipped. Raises `RequestError` STALE_BROKER_EPOCH for a `sender`
    that was replaced.
    """
    if sender is not None:
        check_same_process(image, *sender)
    removed: dict[tuple[UUID, int], RemoveRestoredTailRecord] = {}
    for topic_id, number, leader_epoch in loaded:
        partition = image.partition(topic_id, number)
        if partition is None or (topic_id, number) not in image.restored_tails:
            continue
        if partition.leader_epoch != leader_epoch or not partition.has_leader:
            continue
        if sender is not None and partition.leader != sender.broker_id:
            continue
        removed[topic_id, number] = RemoveRestoredTailRecord(topic_id=topic_id, partition_id=number)
    return ControllerResult(tuple(map(newest, removed.values())), None, is_atomic=False)


def _gives_up_archive(image: MetadataImage, topic_id: UUID) -> bool:
    """Return whether the topic's settings disable tiering and delete its objects in the bucket."""
    overrides = image.config(ResourceType.TOPIC, image.topics_by_id[topic_id].name)

    def is_true(key: str) -> bool:
        return overrides.get(key, "").strip().lower() == "true"

    return is_true("remote.log.delete.on.disable") and not is_true("remote.storage.enable")


def remote_log_record(topic_id: UUID, partition: int, entry: CatalogEntry) -> RemoteLogRecord:
    """Return the record of `entry`."""
    return RemoteLogRecord(topic_id=topic_id, partition_id=partition, **entry._asdict())


def forget_topics(
    image: MetadataImage, topic_ids: Iterable[UUID], *, sender: CatalogSender | None = None
) -> ControllerResult[None]:
    """Remove tombstones; ids without one are skipped.

    Raises `RequestError` STALE_BROKER_EPOCH for a `sender` that was replaced.
    """
    if sender is not None:
        check_same_process(image, *sender)
    known = dict.fromkeys(topic_id for topic_id in topic_ids if topic_id in image.tombstones)
    frames = tuple(newest(RemoveTombstoneRecord(topic_id=topic_id)) for topic_id in known)
    return ControllerResult(frames, None, is_atomic=False)
