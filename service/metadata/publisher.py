"""Metadata of one node: its log, its snapshots, its replica of the quorum, and the committed image.

Owned by the event loop; every node has one. At start the newest readable snapshot is the image; the log
behind it is applied as the high watermark becomes known (`metadata/publication.py`).

The controller proposes batches, with the delta of each, and awaits their commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.disk import Disk
from service.base.errors import ConfigError, CorruptionError, RequestError, StorageError
from service.base.files import exists, make_directory, write_atomically
from service.base.steps import Steps
from service.base.uuids import encode_uuid
from service.base.world import World
from service.hot.names import CLUSTER_METADATA_DIR, PARTITION_METADATA
from service.metadata.batches import encode_batch_in_steps
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage
from service.metadata.metrics import MetadataMetrics
from service.metadata.publication import Listener, Publication
from service.metadata.raft.control import NO_VOTER_RECORDS
from service.metadata.raft.keys import NO_DIRECTORY, ReplicaKey, SnapshotId
from service.metadata.raft.leading import VoterSilence
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.peers import Peers
from service.metadata.raft.roles import RaftTiming, ReplicaIdentity
from service.metadata.raft.runtime import Hooks, Quorum, ValidatedSnapshot
from service.metadata.raft.snapshots import (
    accept_part,
    list_snapshots,
    read_part,
    read_snapshot,
    remove_unfinished,
    set_aside,
)
from service.metadata.raft.state import QuorumState
from service.metadata.raft.state_file import read_state
from service.metadata.raft.voters import VoterNode, VoterSet
from service.metadata.snapshot_codec import SnapshotContent, decode_content
from service.metadata.snapshotter import Snapshotter

_PARTITION_METADATA: Final = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Configuration of the metadata log, under Kafka's keys.

    `directory` is ``metadata.log.dir``, which holds ``__cluster_metadata-0``.
    """

    node_id: int
    directory: Path
    directory_id: UUID = NO_DIRECTORY
    segment_bytes: int = 1 << 30
    """``metadata.log.segment.bytes``"""
    snapshot_max_bytes: int = 20 * 1024 * 1024
    """``metadata.log.max.record.bytes.between.snapshots``"""
    snapshot_interval_ms: int = 3_600_000
    """``metadata.log.max.snapshot.interval.ms``; 0: no limit."""
    retention_bytes: int = 0
    """``metadata.max.retention.bytes``, log and snapshots. 0: keep the least, -1: no limit."""
    retention_ms: int = -1
    """``metadata.max.retention.ms``; -1: no limit"""
    quorum: QuorumOptions | None = None
    """None: this node is the sole voter."""


@dataclass(frozen=True, slots=True)
class QuorumOptions:
    """Part of a node in a quorum. `static_voters`: voters of the configuration, under kraft.version 0."""

    identity: ReplicaIdentity
    static_voters: VoterSet = field(default_factory=VoterSet)
    timing: RaftTiming = field(default_factory=RaftTiming)


class Overtaken(RequestError):
    """Failed proposal: the quorum appended a batch at its offset first. The decision is repeated."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.not_controller, "Another batch was appended to the metadata log first.")


class QuorumStatus(NamedTuple):
    """State of the quorum in this node's view. `leader_id` -1: the leader is unknown."""

    is_leader: bool
    leader_id: int
    epoch: int
    high_watermark: int
    voter_lags: Mapping[int, int]
    """records that each voter lacks of the leader's log, by node id; empty where another node leads"""
    voter_silences: Mapping[int, VoterSilence]
    """time since each other voter has fetched from this leader, by node id; empty likewise"""


class ControllerCallbacks(Protocol):
    """Controller's callbacks: it is active from `on_lead` to `on_step_down`."""

    def on_lead(self, epoch: int) -> None: ...

    def on_step_down(self) -> None: ...


class _Opened(NamedTuple):
    log: MetadataLog
    image: MetadataImage
    state: QuorumState | None


class _Readable(NamedTuple):
    """Newest valid snapshot with its content, and the defects of the later ones."""

    snapshot: SnapshotId | None
    content: SnapshotContent
    damaged: dict[SnapshotId, str]


class Publisher:
    """Metadata of this node. `on_fatal(what, error)` ends the node: nothing is committed any more."""

    def __init__(
        self,
        options: MetadataOptions,
        world: World,
        *,
        on_fatal: Callable[[str, BaseException], None],
        peers: Peers | None = None,
    ) -> None:
        """`peers` calls the other voters of a quorum of several."""
        self._options = options
        self._world = world
        self._on_fatal = on_fatal
        self.metrics = MetadataMetrics()
        self._log_io = world.threads.pool("log-io-metadata", 2)
        sole = VoterSet([VoterNode(ReplicaKey(options.node_id))])
        identity = ReplicaIdentity(ReplicaKey(options.node_id, options.directory_id))
        self._quorum_options = options.quorum or QuorumOptions(identity, sole)
        self._peers = peers
        self._controller: ControllerCallbacks | None = None
        self._log: MetadataLog | None = None
        self._quorum: Quorum | None = None
        self._snapshotter: Snapshotter | None = None
        self._publication: Publication | None = None
        self._listeners: list[Listener] = [self._count_elections]
        self._leader_watchers: list[Callable[[], None]] = []
        self._failure: BaseException | None = None
        self._has_loaded = False

    @property
    def image(self) -> MetadataImage:
        """Newest committed image."""
        return MetadataImage() if self._publication is None else self._publication.image

    @property
    def epoch(self) -> int:
        """Epoch of the quorum's leader; 0 before `start`."""
        return 0 if self._quorum is None else self._quorum.epoch

    @property
    def quorum_status(self) -> QuorumStatus | None:
        """State of the quorum; None before `start`."""
        if self._quorum is None:
            return None
        machine = self._quorum.machine
        return QuorumStatus(
            self._quorum.is_leader,
            machine.leader_id,
            machine.epoch,
            machine.high_watermark,
            machine.voter_lags(),
            machine.voter_silences(self._world.clock.monotonic_ms()),
        )

    @property
    def confirmed_age_ms(self) -> int | None:
        """Time since the quorum has confirmed this node's image; None before `start`, and for a controller
        that is alone."""
        return None if self._quorum is None else self._quorum.confirmed_age_ms

    @property
    def has_loaded(self) -> bool:
        """True once the image has had all that the leader of the quorum called committed.

        Before that it may be of a snapshot, from before a change that this node had already been told of."""
        if not self._has_loaded and self._quorum is not None:
            end = self._quorum.machine.committed_end
            self._has_loaded = end is not None and self.image.offset + 1 >= end
        return self._has_loaded

    def note_loaded(self) -> None:
        """Note that the image has been known to be as new as that: the controller registered this broker."""
        self._has_loaded = True

    def holds(self, end_offset: int, epoch: int) -> bool:
        """Return whether this node's log has the record before `end_offset`, written in `epoch`. Raises as
        `quorum`."""
        metadata_log = self.quorum.machine.core.log
        return end_offset <= metadata_log.end_offset and metadata_log.epochs.epoch_below(end_offset) == epoch

    @property
    def kraft_version(self) -> int:
        """Level in this node's log, committed or not. Raises `RequestError` before `start`."""
        return self.quorum.machine.core.log.voters.version

    @property
    def quorum(self) -> Quorum:
        """Quorum, for requests of other nodes and admin clients. Raises `RequestError` before `start`."""
        if self._quorum is None:
            raise RequestError(ErrorCode.not_controller, "The metadata log is not open.")
        return self._quorum

    @property
    def has_failed(self) -> bool:
        """True once the metadata log has failed: the node is about to end."""
        return self._failure is not None

    def set_controller(self, controller: ControllerCallbacks) -> None:
        """Set the controller to call when this node leads."""
        self._controller = controller
        if self._quorum is not None and self._quorum.is_leader:
            controller.on_lead(self._quorum.epoch)

    def hold(self) -> None:
        """Publish no newer image until `release`, while a cut is taken. Raises as `committed`."""
        self._opened().hold()

    def release(self) -> None:
        """Publish what was committed since `hold`."""
        self._opened().release()

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` on the event loop with every later change.

        A waiter for a change resumes once the awaitable that `listener` returned for it is done.
        """
        self._listeners.append(listener)

    def watch_leader(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` on the event loop whenever this node learns of another leader of the quorum."""
        self._leader_watchers.append(watcher)

    # -- start and stop

    async def start(self) -> None:
        """Open the log and join the quorum.

        A sole voter leads when this returns, and everything committed is published; in a quorum of several,
        that follows once the high watermark is known. Raises `CorruptionError` or `StorageError` where the
        log cannot be opened, `ConfigError` where the configuration has this node alone, and the log has other
        voters.
        """
        loop = asyncio.get_running_loop()
        log, image, state = await loop.run_in_executor(self._log_io, self._open)
        self._log = log
        self._publication = Publication(
            log,
            image,
            self._listeners,
            on_published=self._published,
            on_broken=self._fail,
            on_bug=self._on_fatal,
        )
        self._quorum = self._make_quorum(log, self._publication)
        if self._options.quorum is None and not self._quorum.machine.core.is_sole_voter:
            raise ConfigError(
                f"{log.directory}: the configuration has this node alone, but the log has the voters "
                f"{_format_voters(log)}"
            )
        self._snapshotter = Snapshotter(
            log,
            self._world,
            self._log_io,
            self.metrics,
            max_bytes=self._options.snapshot_max_bytes,
            interval_ms=self._options.snapshot_interval_ms,
            retention_bytes=self._options.retention_bytes,
            retention_ms=self._options.retention_ms,
            current_image=lambda: self.image,
            on_fatal=lambda e: self._on_fatal("metadata snapshot", e),
        )
        await self._quorum.start(state)
        try:
            if self._quorum.machine.core.is_sole_voter:
                await self.committed(log.end_offset - 1)
        except StorageError:
            if isinstance(self._failure, CorruptionError):
                raise self._failure from None
            raise
        self._snapshotter.start()

    def _make_quorum(self, log: MetadataLog, publication: Publication) -> Quorum:
        options = self._quorum_options
        hooks = Hooks(
            on_commit=publication.commit,
            on_fatal=self._fail,
            on_lead=self._lead,
            on_step_down=self._step_down,
            on_truncate=publication.truncated,
            validate=self._validate_snapshot,
            on_restart=self._restarted,
            on_leader=self._leader_known,
        )
        machine = RaftMachine(options.identity, log, options.timing, self._world.random)
        return Quorum(
            machine,
            log,
            self._world.clock,
            self._log_io,
            hooks,
            peers=self._peers,
            request_timeout_ms=options.timing.request_timeout_ms,
        )

    def _lead(self, epoch: int) -> None:
        if self._controller is not None:
            self._controller.on_lead(epoch)

    def _step_down(self) -> None:
        if self._controller is not None:
            self._controller.on_step_down()

    def _count_elections(self, _: MetadataImage, __: MetadataImage, delta: MetadataDelta) -> None:
        """Count the elections of a change, unless it is history that a node reads at its start."""
        was_loaded = self._has_loaded
        if self.has_loaded and was_loaded:
            elections, unclean = delta.elections
            self.metrics.elections += elections
            self.metrics.unclean_elections += unclean

    def _leader_known(self) -> None:
        for watcher in self._leader_watchers:
            watcher()

    def _validate_snapshot(self, snapshot: SnapshotId) -> ValidatedSnapshot:
        """Validate a fetched snapshot, and give it its own name. On a `log-io` thread."""
        disk, directory = self._world.disk, self._options.directory / CLUSTER_METADATA_DIR
        runs = read_part(disk, directory, snapshot)
        content = decode_content(runs, end_offset=snapshot.end_offset, epoch=snapshot.epoch)
        accept_part(disk, directory, snapshot)
        return ValidatedSnapshot(content.voters, content.image)

    def _restarted(self, _: SnapshotId, image: MetadataImage) -> None:
        """Publish the snapshot at which the log restarted."""
        self._opened().jump(image)

    def _open(self) -> _Opened:
        disk, directory = self._world.disk, self._options.directory / CLUSTER_METADATA_DIR
        _prepare(disk, directory)
        state = read_state(disk, directory)
        snapshots = list_snapshots(disk, directory)
        snapshot, content, damaged = _newest_readable(disk, directory, snapshots)
        try:
            log = MetadataLog.open(
                directory,
                self._world,
                segment_bytes=self._options.segment_bytes,
                snapshots=snapshots,
                snapshot=snapshot,
                state=state,
                static_voters=self._quorum_options.static_voters,
                voter_records=content.voters,
                is_acknowledged=self._quorum_options.identity.can_vote,
            )
        except CorruptionError as e:
            raise CorruptionError("; ".join([str(e), *damaged.values()])) from e
        try:
            for one, reason in damaged.items():
                # The log holds its records, as the check has just shown.
                _logger.error("renaming a damaged metadata snapshot: %s", reason)
                set_aside(disk, directory, one)
        except StorageError:
            log.close(clean=False)
            raise
        log.set_snapshots([one for one in log.snapshots if one not in damaged])
        return _Opened(log, content.image, state)

    async def stop(self) -> None:
        """Await proposals in flight, resign and close the log."""
        if self._snapshotter is not None:
            await self._snapshotter.stop()
        if self._quorum is not None:
            await self._quorum.stop()
        if self._publication is not None:
            await self._publication.stop()
        if self._log is not None:
            log, self._log = self._log, None
            clean = self._failure is None
            await asyncio.get_running_loop().run_in_executor(self._log_io, lambda: log.close(clean=clean))
        self._log_io.shutdown(wait=False)  # no task is left there

    # -- proposals

    @property
    def next_offset(self) -> int:
        """Offset of the next record. Raises as `propose` does."""
        return self._leading().next_offset

    def propose(self, frames: Sequence[Frame], before: MetadataImage) -> Steps[MetadataImage]:
        """Append one batch in steps, the last of which writes; returns the image once the batch is committed.

        `before` is the image of the last proposal, or the committed one. One call at a time. Raises
        `RequestError` NOT_CONTROLLER or RECORD_LIST_TOO_LARGE, or `Overtaken`: nothing is written then. After
        a `StorageError` the log is closed for writes, and the outcome of the batch is unknown.
        """
        quorum, now_ms = self._leading(), self._world.clock.now_ms()
        offset, epoch = quorum.next_offset, quorum.epoch
        # Applied before it is written: records that contradict the image must not reach the log.
        delta = yield from MetadataDelta(before).replay_in_steps(frame.record for frame in frames)
        image = yield from delta.build_in_steps(offset + len(frames) - 1, epoch, now_ms)
        place = {"base_offset": offset, "epoch": epoch, "timestamp_ms": now_ms}
        batch = yield from encode_batch_in_steps(frames, **place)
        quorum = self._leading()
        if quorum.epoch != epoch:
            raise RequestError(ErrorCode.not_controller, "The metadata quorum has another leader now.")
        if quorum.next_offset != offset:
            raise Overtaken
        try:
            quorum.append(batch)
        except StorageError as e:
            self._fail(e)
            raise
        self.metrics.batches += 1
        self.metrics.appended_bytes += len(batch)
        self._opened().proposed(offset, image, delta, len(batch))
        return image

    def _leading(self) -> Quorum:
        if self._failure is not None:
            raise StorageError(f"the metadata log failed: {self._failure}")
        if self._quorum is None or not self._quorum.is_leader:
            raise RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
        return self._quorum

    async def committed(self, offset: int) -> None:
        """Wait until the image includes `offset`, and this node has applied it: its heartbeats name no other
        (invariant B2). Raises `StorageError` where it never will."""
        await self._opened().reached(offset)

    async def published(self, offset: int) -> None:
        """Wait until the image includes `offset`, whether this node has applied it or not."""
        await self._opened().published(offset)

    def _opened(self) -> Publication:
        if self._publication is None:
            raise RequestError(ErrorCode.not_controller, "The metadata log is not open.")
        return self._publication

    def _published(self, size: int) -> None:
        if self._snapshotter is not None:
            self._snapshotter.committed(size)

    def _fail(self, failure: BaseException) -> None:
        """Fail all waiters, and report the failure, which ends the node."""
        if self._failure is not None:
            return
        self._failure = failure
        if self._publication is not None:
            self._publication.fail(StorageError(f"the metadata log failed: {failure}"))
        self._on_fatal("metadata log", failure)


def _format_voters(log: MetadataLog) -> str:
    """Format the voters of a log."""
    return ", ".join(
        f"{voter.node_id} ({encode_uuid(voter.key.directory_id)})" for voter in log.voters.latest
    )


def _prepare(disk: Disk, directory: Path) -> None:
    """Create the directory, and delete unfinished snapshots."""
    make_directory(disk, directory)
    remove_unfinished(disk, directory)
    if not exists(disk, directory / PARTITION_METADATA):
        write_atomically(disk, directory / PARTITION_METADATA, _PARTITION_METADATA)


def _newest_readable(disk: Disk, directory: Path, snapshots: list[SnapshotId]) -> _Readable:
    damaged: dict[SnapshotId, str] = {}
    for one in reversed(snapshots):
        try:
            runs = read_snapshot(disk, directory, one)
            content = decode_content(runs, end_offset=one.end_offset, epoch=one.epoch)
            return _Readable(one, content, damaged)
        except CorruptionError as e:
            damaged[one] = f"{directory / one.file_name}: {e}"
    return _Readable(None, SnapshotContent(MetadataImage(), NO_VOTER_RECORDS), damaged)
