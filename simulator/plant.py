"""Known defects, put back one at a time, to see whether they are found: `python -m simulator.plant`.

A defect is a patch of the running process alone (of a history's own child), made here and nowhere else. A
name that is no longer there to be patched is an error, so that a defect that cannot be planted is not
taken for one that is found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from service.base import files
from service.base.disk import DiskError
from service.base.errors import ConfigError, StorageError
from service.base.timeline import Journal
from service.coordinator.context import ShardContext
from service.coordinator.records import StoredBatch
from service.groups import records as group_records
from service.hot import checkpoints as hot_checkpoints
from service.hot import epochs, file_deletion, log_dir, recovery, recovery_walk, retention, segment_indexes
from service.hot import log as hot_log
from service.hot import producers as hot_producers
from service.hot import segment as hot_segment
from service.hot.cleaning import segment_copy
from service.hot.epochs import LeaderEpochs
from service.hot.log_dir import LogDir
from service.hot.log_maintenance import LogMaintenance
from service.hot.names import LEADER_EPOCHS
from service.metadata import snapshot_codec
from service.metadata.raft.log import MetadataLog
from service.partition.archive import PartitionArchive
from service.partition.partition import Partition
from service.records.kernel_status import Status
from service.records.scan import scan_batches
from service.remote.format.keys import topic_prefix
from service.remote.reading import chunk as chunks
from service.remote.reading import resources, store_state
from service.remote.stores.errors import StoreRefused
from service.replicas import dynamic_config
from service.replicas.replica_opener import ReplicaOpener
from service.serving.coordinator_log import CoordinatorLog
from service.tiering import bucket_maintenance, eraser, sweeper, task_scheduler
from service.tiering import chain as tiering_chain
from service.tiering.chain import ChainStore
from service.tiering.head_check import HeadVerdict
from service.tiering.partition_head import PartitionHead
from service.tiering.pending_commit import PendingCommit
from service.tiering.prefix_fence import Fence
from service.tiering.shared_objects import TopicsComparison
from simulator.history import draw, play_apart, warm_up
from simulator.process_disk import SimDisk

Defect = Callable[[], None]


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute that must be there."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for a step that a defect leaves out."""


# The local log


def fsync_error_ignored() -> None:
    """Treat a failed fsync as a success."""

    def make(flush: Any) -> Any:
        def ignoring(self: Any) -> None:
            with suppress(DiskError):
                flush(self)

        return ignoring

    _swap(hot_segment.Segment, "flush", make)


def fsync_forgotten() -> None:
    """Never flush segments, but advance the recovery point."""
    _swap(hot_segment.Segment, "flush", lambda _: _nothing)


def flush_messages_ignored() -> None:
    """Acknowledge appends before the flush that `flush.messages` asks for."""
    hot_log.LocalLog.flush_due = property(lambda self: False)  # type: ignore[assignment,method-assign]


def index_error_after_the_write() -> None:
    """Refuse a batch for a failed index entry when it is in the log file already."""

    def index(self: Any, last_offset: int, position: int, newest: tuple[int, int]) -> None:
        self.offset.append(last_offset, position)
        self.time.maybe_append(*newest)
        self._since_entry = 0

    _swap(segment_indexes.SegmentIndexes, "_add_entries", lambda _: index)


def cleaned_not_flushed() -> None:
    """Swap in a compacted segment without an fsync."""
    _swap(segment_copy, "fsync_file", lambda _: _nothing)


def append_error_swallowed() -> None:
    """Acknowledge a batch that the disk refused."""

    def make(append: Any) -> Any:
        def swallowing(self: Any, *args: Any) -> None:
            with suppress(DiskError):
                append(self, *args)

        return swallowing

    _swap(hot_segment.Segment, "append", make)


def recovery_loses_the_last_batch() -> None:
    """Recovery takes the last whole batch for the torn one."""

    def make(scan: Any) -> Any:
        def but_one(data: Any, **options: Any) -> Any:
            found = scan(data, **options)
            if not found.batches:
                return found
            columns = (column[:-1] for column in found[2:])
            return found.__class__(Status.TRUNCATED, found.positions[-1], *columns)

        return but_one

    _swap(recovery_walk, "scan_batches", make)


def recovery_forgets_producers() -> None:
    """Forget the state of idempotent producers in a recovery after a crash."""
    _swap(recovery, "replay_producers", lambda _: _nothing)
    _swap(recovery, "replay_batch", lambda _: _nothing)


def clean_marker_stays() -> None:
    """Keep the marker of a clean stop at the start, so that a crash looks like a clean stop."""

    def take(self: Any) -> bool:
        return any(entry.name == log_dir.CLEAN_SHUTDOWN for entry in self._world.disk.list(self.path))

    _swap(LogDir, "remove_clean_marker", lambda _: take)


def duplicates_accepted() -> None:
    """Do not check sequence numbers."""
    _swap(hot_producers.ProducerStates, "check", lambda _: lambda self, *_: None)


def epoch_not_noted() -> None:
    """Do not note leader epochs."""
    _swap(LeaderEpochs, "assign", lambda _: lambda self, epoch, start_offset: False)


def names_not_flushed() -> None:
    """Do not flush partition directories, so that new files have no durable names."""

    def make(fsync_dir: Any) -> Any:
        def forgetting(self: Any, path: Any) -> None:
            if path.parent not in (path.root, "/") and "-" in path.name and "metadata" not in path.name:
                return
            fsync_dir(self, path)

        return forgetting

    _swap(SimDisk, "fsync_dir", make)


def partition_metadata_not_flushed() -> None:
    """Write `partition.metadata` without an fsync, so that a crash may tear it."""

    def make(write: Any) -> Any:
        def unflushed(disk: Any, path: Any, data: Any, *, fsync: bool = True) -> None:
            write(disk, path, data, fsync=fsync and path.name != "partition.metadata")

        return unflushed

    _swap(log_dir, "write_atomically", make)


def half_a_line_believed() -> None:
    """Leader epochs of which a crash cut the last number short are taken for what they are not, as they have
    no checksum, either."""

    def make(read_file: Any) -> Any:
        def lenient(disk: Any, path: Any, *rest: Any) -> bytes:
            data: bytes = read_file(disk, path, *rest)
            return data if path.name != LEADER_EPOCHS or data.endswith(b"\n") else data + b"\n"

        return lenient

    def without_checksum(encode: Any) -> Any:
        return lambda entries: [line.rstrip() for line in encode(entries)]

    _swap(files, "read_file", make)
    _swap(epochs, "encode_epochs", without_checksum)


def deletion_acknowledged_at_once() -> None:
    """Acknowledge DeleteRecords before the checkpoint is durable."""
    _swap(LogMaintenance, "durable_start", lambda _: lambda self, log: log.log_start_offset)


def deletion_goes_too_far() -> None:
    """Delete the segment in which the offset of DeleteRecords lies, too."""

    def make(delete: Any) -> Any:
        def generous(self: Any, offset: int) -> Any:
            start = delete(self, offset)
            sealed = [base for base in self.log.state.segments.bases if base > start]
            return delete(self, sealed[0]) if sealed and start else start

        return generous

    _swap(Partition, "delete_records", make)


def files_go_in_any_order() -> None:
    """Go on to delete later segments after one that cannot be unlinked."""

    def all_of_them(disk: Any, paths: Any, latch: Any) -> int:
        file_deletion.delete(disk, paths)
        return len(paths)

    _swap(file_deletion, "delete_in_order", lambda _: all_of_them)


def retention_ten_times_too_early() -> None:
    """Use a tenth of `retention.ms`."""

    def make(limits_of: Any) -> Any:
        def hasty(*args: Any, **kwargs: Any) -> Any:
            limits = limits_of(*args, **kwargs)
            ms = limits.retention_ms
            return limits._replace(retention_ms=ms // 10 if ms > 0 else ms)

        return hasty

    _swap(retention, "limits_of", make)


def local_retention_ignores_the_bucket() -> None:
    """Local segments go by their size, whether or not the bucket has them."""

    def make(decide: Any) -> Any:
        def careless(segments: Any, limits: Any, bounds: Any, *rest: Any) -> Any:
            return decide(segments, limits, bounds._replace(remote_end_offset=1 << 62), *rest)

        return careless

    _swap(retention, "decide", make)


def checkpoint_ahead() -> None:
    """Checkpoints claim more than was flushed: the recovery point is the log's end."""

    def make(update: Any) -> Any:
        def ahead(self: Any, log: Any, said: Any) -> None:
            update(self, log, said)
            said.recovery_points[log.tip.topic, log.tip.partition] = log.log_end_offset

        return ahead

    _swap(hot_checkpoints.OffsetTable, "_update", make)


# The bucket


def judged_without_head() -> None:
    """Believe this node's metadata whatever HEAD says, in each of the checks: one alone would catch it."""

    def ours(entry: Any, head: Any) -> HeadVerdict:
        is_written = entry is None or (head is not None and head.manifest_key == entry.manifest_key)
        return HeadVerdict.EQUAL if is_written else HeadVerdict.OURS_NEWER

    for module in (sweeper, eraser):
        _swap(module, "check_head", lambda _: lambda entry, head: HeadVerdict.EQUAL)
    _swap(tiering_chain, "check_head", lambda _: ours)


def unknown_topics_swept() -> None:
    """Absence is death: objects of topics that the metadata does not know are orphans."""

    def make(orphans: Any) -> Any:
        async def greedy(self: Any, chunk: Any, unknown: set[Any], failures: Any) -> list[sweeper.UnnamedKey]:
            found: list[sweeper.UnnamedKey] = await orphans(self, chunk, unknown, failures)
            prefixes = tuple(topic_prefix(one) for one in sorted(unknown))
            dead = [sweeper.UnnamedKey(info.key) for info in chunk if info.key.startswith(prefixes)]
            return found + dead if prefixes else found

        return greedy

    _swap(sweeper.Sweeper, "_orphans", make)
    _swap(bucket_maintenance, "compare_topics", lambda _: lambda *_: TopicsComparison())
    judged_without_head()


def head_unconditional() -> None:
    """Overwrite HEAD without a condition, and do not check the owner of the prefix."""
    judged_without_head()
    _swap(
        ChainStore,
        "__init__",
        lambda init: lambda self, *a, **k: init(self, *a, **{**k, "is_conditional": False}),
    )
    _never_displaced()


def _never_displaced() -> None:
    async def unasked(self: Any, max_age_ms: int = 0) -> None:
        """Skip the check for another owner."""

    _swap(Fence, "check", lambda _: unasked)


def told_before_the_commit() -> None:
    """Report bytes to the partition as remote before the entry is committed."""

    def make(settle: Any) -> Any:
        async def hasty(self: Any, proposal: Any) -> None:
            self._head._partition.archive.remote_committed(proposal.commit.entry)
            await settle(self, proposal)

        return hasty

    _swap(PendingCommit, "settle", make)


def dropped_objects_go_before_the_commit() -> None:
    """Delete the objects that a manifest drops while the manifest that names them is still current."""

    def make(settle: Any) -> Any:
        async def hasty(self: Any, proposal: Any) -> None:
            if proposal.dropped_segments:
                await self._context.pool.run(self._context.store.delete, proposal.retired)
            await settle(self, proposal)

        return hasty

    _swap(PendingCommit, "settle", make)


def lost_answer_erases() -> None:
    """Delete the manifest of a failed attempt at once, although the write may be late or done."""

    def make(publish: Any) -> Any:
        async def erasing(self: Any, entry: Any, chain: Any) -> None:
            try:
                await publish(self, entry, chain)
            except StorageError:
                with suppress(StorageError):
                    await self._context.pool.run(self._context.store.delete, [entry.manifest_key])
                raise

        return erasing

    _swap(PartitionHead, "publish", make)


def _refusals_are_failures(is_failure: Any) -> Any:
    return lambda error: is_failure(error) or isinstance(error, StoreRefused)


def tiering_stopped_by_refusals() -> None:
    """Take the refusal of one object for a store that does not serve, so that nothing is copied."""
    _swap(task_scheduler, "is_failure", _refusals_are_failures)


def cold_reads_stopped_by_refusals() -> None:
    """Take the refusal of one object for a store that does not serve, so that nothing is read."""
    _swap(store_state, "is_failure", _refusals_are_failures)


def chunks_not_verified() -> None:
    """Serve chunks from the bucket without verifying their checksums."""

    def unverified(data: Any, chunk: Any, table: Any) -> Any:
        view = memoryview(data).toreadonly()
        blocks = [table[number] for number in range(chunk.first_block, chunk.last_block)]
        scan = scan_batches(view, next_offset=blocks[0].first_offset)
        return chunks.Chunk(view, chunk, blocks[-1].last_offset, scan.positions, scan.base_offsets)

    _swap(resources, "verify_chunk", lambda _: unverified)


def appends_not_held() -> None:
    """Accept records after a start before HEAD is compared with the metadata."""
    _swap(PartitionArchive, "hold_appends", lambda _: _nothing)


def archive_not_fitted() -> None:
    """Begin a log whose disk was lost at 0, whatever the archive holds."""
    _swap(ReplicaOpener, "entry", lambda _: lambda self, tip: None)


# The metadata


def metadata_not_flushed() -> None:
    """Respond to changes of metadata before they are on the disk."""
    _swap(MetadataLog, "flush", lambda _: _nothing)


def snapshot_without_the_archive() -> None:
    """Leave the catalog entries out of metadata snapshots."""

    def make(frames: Any) -> Any:
        def forgetful(image: Any) -> Iterator[Any]:
            for frame in frames(image):
                if type(frame.record).__name__ != "RemoteLogRecord":
                    yield frame

        return forgetful

    _swap(snapshot_codec, "image_frames", make)


def overrides_dropped() -> None:
    """Topic settings that do not hold on this node are dropped, and the node's defaults rule."""

    def make(topic_config: Any) -> Any:
        def lenient(overrides: Any, broker: Any) -> Any:
            try:
                return topic_config(overrides, broker)
            except ConfigError:
                return broker.log

        return lenient

    _swap(dynamic_config, "topic_config", make)


# Groups


def acknowledged_before_the_mark() -> None:
    """Treat appended records of groups as committed before they are on the device."""

    def make(advance: Any) -> Any:
        def hasty(self: Any) -> None:
            self._mark = max(self._mark, self._next_offset)
            advance(self)

        return hasty

    _swap(ShardContext, "_advance", make)


def groups_not_replayed() -> None:
    """Do not replay the metadata of classic groups when a log is loaded."""

    def make(rows: Any) -> Any:
        def forgetful(self: Any, *args: Any) -> Iterator[Any]:
            for row in rows(self, *args):
                if group_records.record_type(row[1]) != group_records.GROUP_METADATA:
                    yield row

        return forgetful

    _swap(StoredBatch, "records", make)


def revert_keeps_state() -> None:
    """Respond with an error to a failed write, but keep its changes of the state."""

    def keeping(self: Any, offset: int) -> None:
        self._offset = min(self._offset, offset)

    _swap(Journal, "revert_to", lambda _: keeping)


def last_commit_not_loaded() -> None:
    """Loading ends before the log's last batch."""

    def make(read: Any) -> Any:
        async def short(self: Any, *args: Any) -> Any:
            return (await read(self, *args))[:-1]

        return short

    _swap(CoordinatorLog, "read", make)


def deletions_not_replayed() -> None:
    """Ignore deletions of offsets when a log is loaded."""

    def make(rows: Any) -> Any:
        def forgetful(self: Any, *args: Any) -> Iterator[Any]:
            for row in rows(self, *args):
                if row[2] is not None or group_records.record_type(row[1]) != group_records.OFFSET_COMMIT:
                    yield row

        return forgetful

    _swap(StoredBatch, "records", make)


DEFECTS: Final[tuple[Defect, ...]] = (
    fsync_error_ignored, fsync_forgotten, flush_messages_ignored, index_error_after_the_write,
    cleaned_not_flushed,
    append_error_swallowed, recovery_loses_the_last_batch, recovery_forgets_producers, clean_marker_stays,
    duplicates_accepted, epoch_not_noted, names_not_flushed, partition_metadata_not_flushed,
    half_a_line_believed, files_go_in_any_order, deletion_acknowledged_at_once,
    deletion_goes_too_far, retention_ten_times_too_early,
    local_retention_ignores_the_bucket, checkpoint_ahead,
    judged_without_head, unknown_topics_swept, head_unconditional, told_before_the_commit,
    dropped_objects_go_before_the_commit, lost_answer_erases,
    tiering_stopped_by_refusals, cold_reads_stopped_by_refusals, chunks_not_verified, appends_not_held,
    archive_not_fitted, metadata_not_flushed, snapshot_without_the_archive, overrides_dropped,
    acknowledged_before_the_mark, groups_not_replayed, revert_keeps_state, last_commit_not_loaded,
    deletions_not_replayed,
)  # fmt: skip


_KINDS: Final[Mapping[Defect, Sequence[str]]] = {
    tiering_stopped_by_refusals: ("refuse_objects",),
    cold_reads_stopped_by_refusals: ("refuse_objects",),
    revert_keeps_state: ("commit_offsets", "join_group", "disk_faults", "kill"),
}
"""What histories of a defect are made of that those of everything would meet once in a thousand."""
BADLY_PLANTED: Final = "NOT PLANTED WELL"


def find(defect: Defect, most: int, first: int = 1) -> tuple[int, str] | None:
    """Play histories until one fails that is clean without it; return their number and the failure."""
    for count, seed in enumerate(range(first, first + most), 1):
        plan = draw(seed, _KINDS.get(defect))
        outcome = play_apart(plan, before=defect)
        if outcome.problem is None:
            continue
        if any(sign in outcome.problem for sign in ("bug", "<locals>", "TypeError", "AttributeError")):
            return count, f"{BADLY_PLANTED}: {outcome.problem.splitlines()[0]}"
        if play_apart(plan).problem is None:
            return count, outcome.problem.splitlines()[0]
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every defect was found."""
    parser = argparse.ArgumentParser(prog="python -m simulator.plant", description=__doc__)
    parser.add_argument("--histories", type=int, default=600, help="tried for each defect")
    parser.add_argument("--only", help="names of defects, comma-separated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    wanted = given.only.split(",") if given.only else [one.__name__ for one in DEFECTS]
    chosen = [one for one in DEFECTS if one.__name__ in wanted]
    if unknown := set(wanted) - {one.__name__ for one in chosen}:
        parser.error(f"no such defects: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    missed = played = 0
    warm_up()
    with ThreadPoolExecutor(given.jobs) as pool:
        for defect, found in zip(
            chosen, pool.map(lambda one: find(one, given.histories), chosen), strict=True
        ):
            missed += found is None or found[1].startswith(BADLY_PLANTED)
            played += found[0] if found else given.histories
            how = f"{found[0]:5} histories: {found[1][:110]}" if found else "  not found"
            print(f"{defect.__name__:<38} {how}", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{len(chosen) - missed} of {len(chosen)} found in {seconds:.0f} s: {played} histories, "
        f"{played / seconds:.1f} histories/s"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
