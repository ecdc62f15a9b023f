"""Check of what a worker says that it made of a run, before the leader publishes it.

A worker may be any process: the broker's own thread, `firn rewrite`, a job. What it reports is compared with
the intent, with the chain as it is now, and with the footer of each new object (invariant T23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from service.base.errors import FirnError, StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import RewriteIntent, RewriteKind
from service.remote.format.keys import SegmentKey, parse_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.run_check import MAX_OFFSET_SPAN, MAX_RUN_SEGMENTS, check_run
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import entry_of
from service.tiering.rewriting.rules import ChainRun


class RewriteRefused(FirnError):
    """A report cannot be published, and never can be. Its worker plans again."""


class RunChanged(RewriteRefused):
    """The chain has other objects there by now: expiry, or another rewrite, was faster."""


class NotPublished(StorageError):
    """No answer tells whether a run was published, or it cannot be for now."""


class RewriteReport(NamedTuple):
    """Result of a worker under an intent: the keys of the run's objects, and the entries of the new ones, in
    the chain's order. `is_from_outside`: by a worker that is no part of the node."""

    rewrite_id: UUID
    old_keys: tuple[str, ...]
    entries: tuple[SegmentEntry, ...]
    is_from_outside: bool = False


def check_rewritable(run: ChainRun) -> None:
    """Raise `RewriteRefused` unless the run may become one object."""
    if not 1 <= len(run.entries) <= MAX_RUN_SEGMENTS:
        raise RewriteRefused(f"a run of {len(run.entries)} objects, at most {MAX_RUN_SEGMENTS} are allowed")
    if run.last_offset - run.base_offset > MAX_OFFSET_SPAN:
        raise RewriteRefused(f"a run of {run.last_offset - run.base_offset + 1} offsets")
    for entry in run.entries:
        if entry.owner is not None:
            raise RewriteRefused(f"{entry.key} is of another partition")


def check_report(report: RewriteReport, intent: RewriteIntent, run: ChainRun) -> None:
    """Raise `RewriteRefused` unless the report's entries may replace `run`, the chain's entries now, under
    `intent`."""
    if run.keys != report.old_keys:
        raise RunChanged(
            f"{run.tip}: the chain has other objects from {run.base_offset} to {run.last_offset} now"
        )
    for entry in report.entries:
        _check_entry(entry, intent, run.tip)
    try:
        check_run(run.entries, report.entries)
    except ValueError as e:
        raise RewriteRefused(str(e)) from e
    keys = {entry.key for entry in report.entries}
    if len(keys) != len(report.entries) or not keys.isdisjoint(run.keys):
        raise RewriteRefused("an object is named twice")
    if intent.kind is RewriteKind.MERGE:
        _check_merge(report.entries, run)


def _check_entry(entry: SegmentEntry, intent: RewriteIntent, tip: TopicIdPartition) -> None:
    key = parse_key(entry.key)
    if not isinstance(key, SegmentKey) or (key.topic_id, key.partition) != (tip.topic_id, tip.partition):
        raise RewriteRefused(f"{entry.key!r} is no segment of {tip}")
    if entry.owner is not None or (key.base_offset, key.last_offset) != (
        entry.base_offset,
        entry.last_offset,
    ):
        raise RewriteRefused(f"{entry.key} is an object of other offsets, or of another partition")
    if key.leader_epoch != intent.leader_epoch:
        raise RewriteRefused(
            f"{entry.key} is not of leader epoch {intent.leader_epoch}, which the intent has"
        )


def _check_merge(new: Sequence[SegmentEntry], run: ChainRun) -> None:
    """A merge keeps every byte of the run's logs."""
    kept, before = (sum(one.log_length for one in some) for some in (new, run.entries))
    if kept != before:
        raise RewriteRefused(f"a merge makes {kept} bytes of {before}")
    kept, before = (max(one.max_timestamp for one in some) for some in (new, run.entries))
    if kept != before:
        raise RewriteRefused(f"a merge changes the newest timestamp from {before} to {kept}")


def check_object(
    entry: SegmentEntry, footer: Footer, report: RewriteReport, intent: RewriteIntent, cluster_id: str
) -> None:
    """Raise `RewriteRefused` unless the object in the bucket is the one that was made for the intent."""
    if entry != entry_of(footer):  # what an entry of older software may lack, too
        raise RewriteRefused(f"{entry.key}: the footer says {entry_of(footer)}, the report {entry}")
    origin, identity = footer.rewrite, footer.identity
    if origin is None or (origin.id, origin.kind) != (report.rewrite_id, intent.kind.name.lower()):
        raise RewriteRefused(f"{entry.key} was not made for rewrite {report.rewrite_id}")
    if identity.cluster_id != cluster_id:
        raise RewriteRefused(f"{entry.key} is of cluster {identity.cluster_id}")
    if not origin.may_have(footer.record_count):
        raise RewriteRefused(f"{entry.key}: {footer.record_count} records of {origin.record_count}")
