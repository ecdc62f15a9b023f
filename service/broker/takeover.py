"""`firn.remote.recover`: this node takes over what the bucket has and its metadata lacks, before it serves.

An act of an operator, who knows that no other node writes to the prefix: after a lost disk (a new one, with
the same `firn.cluster.id`), or one restored from a backup. The local log of a partition is kept where it
holds the archive's last record under the same leader epoch, as then both are of one past; otherwise it
begins anew where the archive ends. The restored records behind that are given up, and it is said how many.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from service.base.errors import CorruptionError
from service.hot.log import LocalLog
from service.metadata.controller.adoption_control import AdoptedPartition, AdoptedTopic
from service.metadata.controller.controller import Controller
from service.metadata.image import MetadataImage
from service.metadata.snapshot_codec import decode_snapshot
from service.remote.catalog import CatalogEntry

if TYPE_CHECKING:
    from service.tiering.recovery import Archive, ArchivedPartition

log = logging.getLogger(__name__)

Adopted: TypeAlias = "Mapping[tuple[UUID, int], ArchivedPartition]"
"""The partitions whose entry was taken from the bucket."""


async def adopt_archive(archive: Archive, controller: Controller) -> Adopted:
    """Have the metadata say what `archive` does; which partitions that changed."""
    for problem in archive.problems:
        log.error("firn.remote.recover: cannot be read and is not taken over (firn repair): %s", problem)
    topics = [
        AdoptedTopic(
            topic.row.name,
            topic.row.topic_id,
            topic.row.partitions,
            topic.row.configs,
            {n: AdoptedPartition(one.entry, one.leader_epoch) for n, one in topic.partitions.items()},
        )
        for topic in archive.topics
    ]
    adoption = await controller.adopt(topics, _lost(archive), last_producer_id=archive.last_producer_id)
    for refusal in adoption.refused:
        log.error("firn.remote.recover: not taken over: %s", refusal)
    log.warning(
        "firn.remote.recover: %d topics and %d partitions are taken over from the bucket: %s",
        len(adoption.topics),
        len(adoption.partitions),
        ", ".join(sorted(adoption.topics)[:20]) or "no topic that was not known",
    )
    known = {
        (topic.row.topic_id, number): one
        for topic in archive.topics
        for number, one in topic.partitions.items()
    }
    return {key: known[key] for key in adoption.partitions}


def _lost(archive: Archive) -> MetadataImage | None:
    """The newest metadata of the node before this one, as far as the bucket has it."""
    if archive.metadata is None:
        return None
    ref, data = archive.metadata
    try:
        return decode_snapshot([data], end_offset=ref.end_offset, epoch=ref.epoch)
    except CorruptionError as e:
        log.error("firn.remote.recover: cannot be read: %s: %s", ref.key, e)
        return None


def fit_to_archive(local: LocalLog, remote: CatalogEntry, archived: ArchivedPartition) -> None:
    """Make a log that was just opened go on where the archive does that was taken over."""
    if remote.is_given_up:
        return  # tiering was switched off: what there is of the log is here
    last = remote.end_offset - 1
    if (
        local.local_log_start_offset <= last < local.log_end_offset
        and archived.epochs
        and local.epochs.epoch_at(last) == archived.epochs[-1][0]
    ):
        log.info("%s: the local log is of the archive's past and is kept", local.tip)
        return
    given_up = max(0, local.log_end_offset - max(remote.end_offset, local.local_log_start_offset))
    log.warning(
        "%s: goes on at %d, where its archive ends; %d local records behind that are given up",
        local.tip,
        remote.end_offset,
        given_up,
    )
    local.restart_at(
        remote.end_offset, remote.start_offset, epochs=archived.epochs, producers=archived.producers
    )
