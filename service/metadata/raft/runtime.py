"""The Raft machine's shell: does its effects on the metadata log, on the event loop and a `log-io` thread.

Owned by the event loop. Appends are written at once; one flush runs at a time, and what is appended meanwhile
shares the next one. It knows bytes and offsets; what the bytes say is the publisher's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from kio.schema.errors import ErrorCode
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage, Voter
from kio.schema.types import BrokerId
from kio.static.primitive import i16, i32

from service.base.clock import Clock
from service.base.errors import InvariantError, RequestError
from service.metadata.batches import MAX_BATCH_BYTES, encode_control_batch
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.sole import (
    Appended,
    BecomeLeader,
    Commit,
    Effect,
    Flush,
    Flushed,
    Persist,
    RaftMachine,
    Role,
    Start,
    Stop,
)
from service.metadata.raft.state import QuorumState


class Quorum:
    """This node's part in the metadata quorum.

    `on_commit(high_watermark)` is called on the loop as the log is decided; `on_fatal` when the disk fails
    under it, after which nothing is ever committed again.
    """

    def __init__(
        self,
        machine: RaftMachine,
        log: MetadataLog,
        clock: Clock,
        log_io: Executor,
        *,
        on_commit: Callable[[int], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._machine = machine
        self._log = log
        self._clock = clock
        self._log_io = log_io
        self._on_commit = on_commit
        self._on_fatal = on_fatal
        self._flush: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The epoch in which this node leads."""
        return self._machine.epoch

    @property
    def is_leader(self) -> bool:
        return self._machine.role is Role.LEADER

    @property
    def next_offset(self) -> int:
        """Where the next record goes."""
        return self._log.end_offset

    async def start(self, state: QuorumState | None) -> None:
        """Stand for election. `state` is what ``quorum-state`` said. Raises `StorageError`."""
        loop = asyncio.get_running_loop()
        for effect in self._machine.handle(Start(state, self._log.end_offset, self._log.last_epoch)):
            if isinstance(effect, Persist):
                await loop.run_in_executor(self._log_io, self._log.write_state, effect.state)
            else:
                self._execute(effect)

    def append(self, batch: bytearray) -> None:
        """Write a batch that was made for `next_offset` and `epoch`. It counts once it is committed.

        Raises `RequestError` NOT_CONTROLLER where this node does not lead, RECORD_LIST_TOO_LARGE beyond
        8 MiB: nothing is written then. Of a `StorageError` the log does not recover.
        """
        if not self.is_leader:
            raise RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
        if len(batch) > MAX_BATCH_BYTES:
            raise RequestError(
                ErrorCode.record_list_too_large,
                f"The change takes {len(batch)} bytes of metadata, the limit is {MAX_BATCH_BYTES}.",
            )
        self._log.append(batch)
        self._handle(Appended(self._log.end_offset))

    async def stop(self) -> None:
        """Wait for what is being flushed, and resign."""
        while self._flush is not None:
            await self._flush
        if self._machine.role is not Role.RESIGNED:
            self._handle(Stop())

    def _handle(self, event: Appended | Flushed | Stop) -> None:
        for effect in self._machine.handle(event):
            self._execute(effect)

    def _execute(self, effect: Effect) -> None:
        match effect:
            case BecomeLeader():
                self._append_leader_change(effect)
            case Flush(end_offset):
                self._flush = asyncio.get_running_loop().create_task(
                    self._run_flush(end_offset), name="metadata-flush"
                )
            case Commit(high_watermark):
                self._on_commit(high_watermark)
            case Persist():
                raise InvariantError("raft: state changes only at the start")

    def _append_leader_change(self, effect: BecomeLeader) -> None:
        message = LeaderChangeMessage(
            version=i16(0),
            leader_id=BrokerId(self._machine.node_id),
            voters=tuple(Voter(voter_id=i32(voter)) for voter in effect.voters),
            granting_voters=tuple(Voter(voter_id=i32(voter)) for voter in effect.granting_voters),
        )
        batch = encode_control_batch(
            message,
            base_offset=self._log.end_offset,
            epoch=effect.epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        self._log.append(batch)
        self._handle(Appended(self._log.end_offset))

    async def _run_flush(self, end_offset: int) -> None:
        """An error here is not survivable: what the kernel could not write it may have forgotten."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._log_io, self._log.flush, end_offset)
            self._flush = None
            self._handle(Flushed(end_offset))
        except Exception as e:
            self._flush = None
            self._on_fatal(e)
