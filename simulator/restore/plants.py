"""Bugs of recoveries and sweeps, put back one at a time, to see which disaster finds each."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from service.hot.log import LocalLog
from service.inspect.committed import Committed, TopicState
from service.metadata import image_frames
from service.metadata.controller import adoption_control
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.metadata.records import PartitionRecord
from service.remote.reading.reader import ArchiveEnd
from service.replicas import archive_fit, archive_recovery, dynamic_config
from service.tiering import shared_objects


def _replace(owner: object, name: str, by: object) -> None:
    """Put `by` in the place of an attribute that must be there."""
    getattr(owner, name)
    setattr(owner, name, by)


def settings_not_recovered() -> None:
    """Topics and brokers come back without their settings, and these are taken for known."""
    _replace(adoption_control, "_settings", lambda *_: ())


def lives_not_counted() -> None:
    """Forget lives: compare metadata copies by their offsets alone."""
    why_later = shared_objects._why_later

    def by_offset(stored: tuple[int, int], ours: tuple[int, int]) -> str | None:
        return why_later((0, stored[1]), (0, ours[1]))

    _replace(shared_objects, "_why_later", by_offset)


def unknown_settings_expire() -> None:
    """Retention works of topics whose settings are not known."""
    _replace(dynamic_config, "waits_for_settings", lambda *_: False)


def loss_not_missed() -> None:
    """Take the newest readable copy of the metadata for the last one."""
    _replace(archive_recovery, "_why_doubted", lambda *_, **__: None)


def newest_by_offset() -> None:
    """Take the metadata copy of the greatest offset, whatever its life and epoch."""
    position = property(lambda image: (0, 0, image.offset + 1))
    _replace(MetadataImage, "position", position)


def leaders_forgotten() -> None:
    """Drop the eligible leaders beside the ISR in a recovery: after an unclean end the ISR is empty."""
    record = image_frames.partition_record

    def without(topic: TopicImage, number: int, own: PartitionImage) -> PartitionRecord:
        return record(topic, number, own._replace(eligible_leader_replicas=(), last_known_elr=()))

    _replace(adoption_control, "partition_record", without)


def epoch_for_bytes() -> None:
    """Take a local log for the archive's past if it has the epoch of the archive's last offset there."""

    def has_epoch(local: LocalLog, end: ArchiveEnd) -> bool:
        if end.last_block is None or local.log_end_offset <= end.last_block.last_offset:
            return False
        return end.epochs[-1][0] in dict(local.epochs.entries)

    _replace(archive_fit, "holds_last_block", has_epoch)


def sweep_by_topics_json() -> None:
    """Let `firn sweep` take the topics in `topics.json` for the existing ones."""

    def listed(committed: Committed) -> dict[UUID, str]:
        rows = () if committed.topics is None else committed.topics.topics
        return {row.topic_id: row.name for row in rows}

    def state(committed: Committed, topic_id: UUID, newest_ms: int) -> TopicState:
        return TopicState.LIVE if topic_id in listed(committed) else TopicState.UNKNOWN

    _replace(Committed, "ever_live", listed)
    _replace(Committed, "state", state)


PLANTS: Final = (
    settings_not_recovered,
    lives_not_counted,
    unknown_settings_expire,
    loss_not_missed,
    newest_by_offset,
    leaders_forgotten,
    epoch_for_bytes,
    sweep_by_topics_json,
)
