"""The controller's shell: each request is decided, written, applied, and answered once it is committed.

Owned by the event loop. A decision looks at the newest image, committed or not, and is applied to it before
anything else runs: so of two requests for one name exactly one wins, though both wait for the same fsync.
Answers, listeners and `Controller.image` see committed metadata only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.world import World
from service.metadata.controller import (
    catalog_control,
    cluster_control,
    configs_control,
    producer_ids_control,
    topics_control,
)
from service.metadata.controller.decision import Decision
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    AlterResource,
    AlterResourceResult,
    ConfigRules,
    CreateTopic,
    CreateTopicResult,
    DeleteTopic,
    DeleteTopicResult,
    Endpoint,
    ProducerIdBlock,
    RegisterBroker,
    TopicDefaults,
)
from service.metadata.controller.snapshotter import Snapshotter
from service.metadata.delta import MetadataDelta
from service.metadata.features import bootstrap_frames, controller_frame
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage
from service.metadata.raft.log import DIRECTORY_NAME, MetadataLog, Recovered
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.runtime import Quorum
from service.metadata.raft.state_file import QuorumState, read_state
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult

R = TypeVar("R")
Listener = Callable[[MetadataImage, MetadataImage, MetadataDelta], None]
"""Called with the image before, the image after and the delta between them."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """`directory` is the metadata log dir, in which ``__cluster_metadata-0`` lies. Keys are Kafka's."""

    node_id: int
    cluster_id: str
    directory: Path
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    listeners: tuple[Endpoint, ...] = ()
    """where this controller is reached"""
    segment_bytes: int = 1 << 30
    """``metadata.log.segment.bytes``"""
    snapshot_max_bytes: int = 20 * 1024 * 1024
    """``metadata.log.max.record.bytes.between.snapshots``"""
    snapshot_interval_ms: int = 3_600_000
    """``metadata.log.max.snapshot.interval.ms``; 0: never because of time"""


class _Uncommitted(NamedTuple):
    """A batch that is written but not committed, and the image up to it."""

    image: MetadataImage
    delta: MetadataDelta
    size: int


class Controller:
    """The cluster's controller, on the node that leads the metadata quorum. Is a `tiering.catalog.Catalog`.

    Every coroutine raises `RequestError` where the request as a whole is refused (NOT_CONTROLLER once
    stopped) and `StorageError` where the metadata log cannot be written: what became of the change is then
    unknown.
    """

    def __init__(
        self,
        options: ControllerOptions,
        world: World,
        config_rules: ConfigRules,
        *,
        new_uuid: Callable[[], UUID] = uuid4,
        log_io: Executor | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._options = options
        self._world = world
        self._clock = world.clock
        self._rules = config_rules
        self._new_uuid = new_uuid
        self._own_log_io: ThreadPoolExecutor | None = None
        if log_io is None:
            log_io = self._own_log_io = ThreadPoolExecutor(2, thread_name_prefix="log-io-metadata")
        self._log_io = log_io
        self._report_fatal = on_fatal
        self._machine = RaftMachine(options.node_id, (options.node_id,))
        self._log: MetadataLog | None = None
        self._quorum: Quorum | None = None
        self._snapshotter: Snapshotter | None = None
        self._image = MetadataImage()
        self._latest = self._image
        self._uncommitted: deque[_Uncommitted] = deque()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._listeners: list[Listener] = []
        self._sessions: set[int] = set()
        self._failure: BaseException | None = None

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._image

    @property
    def epoch(self) -> int:
        """The controller's epoch; 0 before `start`."""
        return self._machine.epoch

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` on the loop with every change committed from now on, before its requester knows."""
        self._listeners.append(listener)

    # -- life

    async def start(self) -> None:
        """Open the log, lead the quorum, and return once that is committed.

        Raises `CorruptionError` or `StorageError` where the log cannot be opened.
        """
        loop = asyncio.get_running_loop()
        log, recovered, state = await loop.run_in_executor(self._log_io, self._open)
        self._log = log
        self._image = self._latest = recovered.image
        self._quorum = Quorum(
            self._machine,
            log,
            self._clock,
            self._world.disk,
            self._log_io,
            on_commit=self._commit,
            on_fatal=self._fail,
        )
        self._snapshotter = Snapshotter(
            log,
            self._clock,
            self._log_io,
            max_bytes=self._options.snapshot_max_bytes,
            interval_ms=self._options.snapshot_interval_ms,
            recovered=recovered,
            current_image=lambda: self._image,
            on_fatal=self._fail,
        )
        await self._quorum.start(state)
        if not self._latest.features:
            self._append(Decision(bootstrap_frames(), None))
        registration = controller_frame(self._options.node_id, self._new_uuid(), self._options.listeners)
        self._append(Decision((registration,), None))
        await self._committed(self._latest.offset)
        self._snapshotter.start()

    def _open(self) -> tuple[MetadataLog, Recovered, QuorumState | None]:
        directory = self._options.directory / DIRECTORY_NAME
        log, recovered = MetadataLog.open(directory, self._world, segment_bytes=self._options.segment_bytes)
        return log, recovered, read_state(self._world.disk, directory)

    async def stop(self) -> None:
        """Answer what is in flight, resign and close the log. Requests from now on get NOT_CONTROLLER."""
        if self._snapshotter is not None:
            await self._snapshotter.stop()
        if self._quorum is not None:
            await self._quorum.stop()
        if self._log is not None:
            clean = self._failure is None
            await asyncio.get_running_loop().run_in_executor(
                self._log_io, lambda log: log.close(clean=clean), self._log
            )
            self._log = None
        if self._own_log_io is not None:
            self._own_log_io.shutdown()

    # -- requests

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        """Create topics; see `topics_control.create_topics` for the order of the answers."""
        return await self._run(
            lambda image: topics_control.create_topics(
                image,
                requests,
                defaults=self._options.defaults,
                rules=self._rules,
                new_uuid=self._new_uuid,
                validate_only=validate_only,
            )
        )

    async def delete_topics(self, requests: Sequence[DeleteTopic]) -> list[DeleteTopicResult]:
        """Delete topics by name or id; the answers are in no particular order."""
        return await self._run(lambda image: topics_control.delete_topics(image, requests))

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Change configurations; `via_broker` is the broker to which the client spoke."""
        return await self._run(
            lambda image: configs_control.incremental_alter_configs(
                image, resources, self._rules, validate_only=validate_only, via_broker=via_broker
            )
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """A block of producer ids that nobody else will ever get."""
        return await self._run(
            lambda image: producer_ids_control.allocate_producer_ids(image, broker_id, broker_epoch)
        )

    async def register_broker(self, request: RegisterBroker) -> int:
        """Register a broker process; returns its epoch. It is fenced until `unfence_broker`."""
        epoch = await self._run(
            lambda image: cluster_control.register_broker(
                image,
                request,
                cluster_id=self._options.cluster_id,
                next_offset=self._active_quorum().next_offset,
                has_session=request.broker_id in self._sessions,
            )
        )
        self._sessions.add(request.broker_id)
        return epoch

    async def unfence_broker(self, broker_id: int, broker_epoch: int) -> None:
        """The broker serves from now on: it leads what has no leader, in a new leader epoch each."""
        await self._run(lambda image: cluster_control.unfence_broker(image, broker_id, broker_epoch))

    async def fence_broker(self, broker_id: int, broker_epoch: int) -> None:
        """The broker stops: it leads nothing any more, and another process may take its id."""
        await self._run(lambda image: cluster_control.fence_broker(image, broker_id, broker_epoch))
        self._sessions.discard(broker_id)

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Compare-and-set of remote catalog entries, all of a call in one batch."""
        return await self._run(lambda image: catalog_control.commit_catalog(image, commits))

    commit_catalog = commit

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        """The committed remote catalog entry of a partition."""
        return self._image.remote.get((topic_id, partition))

    # -- deciding, writing, committing

    async def _run(self, decide: Callable[[MetadataImage], Decision[R]]) -> R:
        """Decide, write and apply with no await in between; then wait until it counts.

        An answer that writes nothing waits too: it may rest on a change that is not committed yet.
        """
        self._active_quorum()
        decision = decide(self._latest)
        self._append(decision)
        await self._committed(self._latest.offset)
        return decision.response

    def _active_quorum(self) -> Quorum:
        if self._failure is not None:
            raise StorageError(f"the metadata log failed: {self._failure}")
        if self._quorum is None or not self._quorum.is_leader:
            raise RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
        return self._quorum

    def _append(self, decision: Decision[R]) -> None:
        frames = decision.frames
        step = len(frames) if decision.is_atomic else MAX_RECORDS_PER_OPERATION
        for start in range(0, len(frames), step or 1):
            self._append_batch(frames[start : start + step])

    def _append_batch(self, frames: Sequence[Frame]) -> None:
        """Apply before writing: records that make no sense must not reach the log."""
        quorum = self._active_quorum()
        now_ms = self._clock.now_ms()
        delta = MetadataDelta(self._latest).replay_all(frame.record for frame in frames)
        image = delta.build(quorum.next_offset + len(frames) - 1, quorum.epoch, now_ms)
        size = quorum.append(frames, now_ms)
        self._latest = image
        self._uncommitted.append(_Uncommitted(image, delta, size))

    async def _committed(self, offset: int) -> None:
        if offset <= self._image.offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((offset, waiter))
        await waiter

    def _commit(self, high_watermark: int) -> None:
        while self._uncommitted and self._uncommitted[0].image.offset < high_watermark:
            image, delta, size = self._uncommitted.popleft()
            before, self._image = self._image, image
            for listener in self._listeners:
                listener(before, image, delta)
            if self._snapshotter is not None:
                self._snapshotter.committed(size)
        while self._waiters and self._waiters[0][0] < high_watermark:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, failure: BaseException) -> None:
        """Nothing will be committed any more: whoever waits is told, and the node is, to end itself."""
        if self._failure is not None:
            return
        self._failure = failure
        _logger.critical("the metadata log failed", exc_info=failure)
        while self._waiters:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_exception(StorageError(f"the metadata log failed: {failure}"))
        if self._report_fatal is not None:
            self._report_fatal(failure)
