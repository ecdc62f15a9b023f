"""One replica of the model: a machine, its disk, and what the shell does with its effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.metadata.endpoint import Endpoint
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendControl,
    Appended,
    AppendFetched,
    Effect,
    Event,
    Flushed,
    FlushLog,
    Initialize,
    KRaftVoters,
    Lead,
    NotAppended,
    OutboundResponse,
    Persist,
    RestartAt,
    Send,
    SnapshotReady,
    StepDown,
    StoreSnapshot,
    Tick,
    TruncateTo,
)
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.requests import (
    FetchSnapshotResponse,
    RaftFetchResponse,
    RaftResponse,
    ReadLog,
    ReadSnapshot,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.roles import Leader, RaftTiming, ReplicaIdentity
from simulator.machines.model import Batch, ModelDisk, ModelLog, Piece, Snapshot
from simulator.machines.oracle import Violation

if TYPE_CHECKING:
    from simulator.machines.world import MachinesWorld

_WAITED_FOR: Final = (Persist, TruncateTo, RestartAt)
_PIECES_READ: Final = 3


class Replica:
    """`life` counts its processes; a callback of an earlier one does nothing."""

    def __init__(self, world: MachinesWorld, node_id: int, disk: ModelDisk, *, can_vote: bool) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.can_vote = can_vote
        self.life = 0
        self.is_alive = False
        self.leading = -1
        self.endpoint = Endpoint("CONTROLLER", f"n{node_id}", 9093)
        self.rate = 1.0
        self.is_slow = False
        self.mark = self.checked = 0

    @property
    def key(self) -> ReplicaKey:
        return self.disk.key

    @property
    def log(self) -> ModelLog:
        return self.disk.log

    @property
    def is_leader(self) -> bool:
        if not self.is_alive or self.leading < 0:
            return False
        return isinstance(self.machine.core.state, Leader) and self.leading == self.machine.epoch

    def start(self) -> None:
        self.life += 1
        self.is_alive = True
        self.leading = -1
        self.mark = self.checked = 0
        self._queue: deque[Event] = deque()
        self._effects: Iterator[Effect] | None = None
        self._tick_at = -1.0
        self._flush_turn = self._cuts = 0
        self._asked: dict[int, Any] = {}
        self._pieces: dict[SnapshotId, list[Piece]] = {}
        world = self.world
        identity = ReplicaIdentity(self.key, "cluster", (self.endpoint,), world.bootstrap, self.can_vote)
        timing = RaftTiming(auto_join=world.auto_join, append_linger_ms=world.linger_ms)
        self.machine = RaftMachine(identity, self.log, timing, world.random)
        world.plant_in(self)
        self.log.durable_end = self.log.end_offset
        self.tell(Initialize(self.disk.state))

    def crash(self) -> None:
        self.is_alive = False
        self.life += 1
        self.log.lose_power(self.world.random)

    # -- events

    def tell(self, event: Event) -> None:
        if self.is_alive:
            self._queue.append(event)
            if self._effects is None:
                self._run()

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        life = self.life
        self.world.at(self.world.now + delay_ms, lambda: action() if self.life == life else None)

    def now_ms(self) -> int:
        """Time by the replica's own clock."""
        return int(self.world.now * self.rate) + 1000 * self.node_id

    def _run(self) -> None:
        while self._effects is None and self._queue:
            event = self._queue.popleft()
            self.world.events += 1
            try:
                effects = self.machine.handle(event, self.now_ms())
            except InvariantError as e:
                raise Violation(f"{self.key} ends itself: {e}") from e
            self.world.oracle.stepped(self)
            self._effects = iter(effects)
            self._go_on()

    def _go_on(self) -> None:
        assert self._effects is not None
        for effect in self._effects:
            if self.world.skips(effect):
                continue
            if isinstance(effect, _WAITED_FOR):
                self.later(self._disk_ms(), lambda effect=effect: self._waited(effect))  # type: ignore[misc]
                return
            self._do(effect)
            if not self.is_alive:
                return
        self._effects = None
        self._wind()

    def _waited(self, effect: Effect) -> None:
        self._do(effect)
        self._go_on()
        self._run()

    def _disk_ms(self) -> float:
        random = self.world.random.random()
        return 300 * random if self.is_slow else 0.2 + 3 * random

    def _wind(self) -> None:
        deadline = self.machine.next_deadline_ms()
        if deadline is None:
            return
        at = self.world.now + max((deadline - self.now_ms()) / self.rate, 0) + 0.01
        if self._tick_at <= self.world.now or at < self._tick_at:
            self._tick_at = at
            self.later(at - self.world.now, lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if self._tick_at == at:
            self._tick_at = -1.0
            self.tell(Tick())

    # -- effects

    def _do(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case Send(peer, call, asked):
                if isinstance(asked, VoteRequest):
                    world.oracle.told_epoch(self.key, asked.epoch)
                    if not asked.pre_vote:
                        world.oracle.voted(self.key, asked.epoch, self.key)
                        world.may_fall("votes", self)
                world.network.ask(self, peer, call, asked)
            case OutboundResponse(request, answer):
                self._reply(request, answer)
            case FlushLog(end):
                turn = self._flush_turn, self._cuts
                wait = world.hang_ms() or self._disk_ms()
                self.later(wait, lambda: self._flushed(turn, end))
            case AppendFetched(epoch, records):
                self._append_fetched(epoch, records)
            case AppendControl(epoch, records):
                for record in records:
                    if isinstance(record, KRaftVoters):
                        world.oracle.changes_voters(self, record)
                self.append(Batch(self.log.end_offset, epoch, records))
            case AdvanceHighWatermark(mark):
                world.oracle.commits(self, mark)
                if self.is_leader:
                    world.may_fall("commits", self)
            case Persist(state):
                self.disk.state = state
            case TruncateTo(end):
                self._flush_turn += not world.keeps_flush
                self._cuts += 1
                self.log.truncate(end)
            case StoreSnapshot(snapshot, position, data, is_last):
                self._store(snapshot, position, data, is_last)
            case RestartAt(snapshot):
                self._flush_turn += not world.keeps_flush
                self._cuts += 1
                self.log.restart(self._pieces.pop(snapshot)[0].snapshot)
            case Lead(epoch):
                self.leading = epoch
                world.oracle.leads(self)
                world.may_fall("leads", self)
            case StepDown():
                self.leading = -1
            case _:
                pass

    def append(self, batch: Batch) -> None:
        before = self.log.epochs.epoch_below(batch.base)
        self.world.oracle.appended(self, batch, before)
        self.log.append(batch)
        self._queue.appendleft(Appended(batch.end))

    def propose(self, values: tuple[int, ...]) -> None:
        """Append a batch as the controller does."""
        epoch = self.machine.epoch
        batch = Batch(self.log.end_offset, epoch, values)
        self.world.oracle.appended(self, batch, self.log.epochs.epoch_below(batch.base))
        self.log.append(batch)
        self.tell(Appended(batch.end))

    def _append_fetched(self, epoch: int, records: Any) -> None:
        event: Event = NotAppended()
        for batch in records:
            if batch.base != self.log.end_offset or not self.log.epochs.latest <= batch.epoch <= epoch:
                break
            before = self.log.epochs.epoch_below(batch.base)
            self.world.oracle.appended(self, batch, before)
            self.log.append(batch)
            event = Appended(batch.end)
        self._queue.appendleft(event)

    def _flushed(self, began: tuple[int, int], end: int) -> None:
        turn, cuts = began
        if turn == self._flush_turn:
            if cuts != self._cuts:  # a planted bug: what was on its way to the disk is not there any more
                self.tell(Flushed(end))
                return
            self.log.durable_end = max(self.log.durable_end, min(end, self.log.end_offset))
            self.tell(Flushed(end))

    def asked(self, request: int, asked: Any) -> None:
        self._asked[request] = asked

    def _reply(self, request: int, answer: RaftResponse) -> None:
        oracle, asked = self.world.oracle, self._asked.pop(request, None)
        epoch = getattr(answer, "epoch", -1)
        oracle.told_epoch(self.key, epoch)
        if isinstance(answer, VoteResponse) and answer.granted and not asked.pre_vote:
            oracle.voted(self.key, epoch, asked.candidate)
        if isinstance(answer, RaftFetchResponse) and isinstance(answer.records, ReadLog):
            count = self.world.random.randint(1, self.world.batches_read)
            answer = answer._replace(records=self.log.read(answer.records.offset, count))  # type: ignore[arg-type]
        if isinstance(answer, FetchSnapshotResponse) and isinstance(answer.data, ReadSnapshot):
            answer = self._read_snapshot(answer, answer.data)
        self.world.network.answer(self, request, answer)

    def _read_snapshot(self, answer: FetchSnapshotResponse, read: ReadSnapshot) -> FetchSnapshotResponse:
        held = self.log.snapshots_held.get(read.snapshot)
        if held is None:
            return answer._replace(error=ErrorCode.snapshot_not_found, snapshot=None, data=b"")
        if read.position >= held.size:
            return answer._replace(error=ErrorCode.position_out_of_range, data=b"")
        end = min(read.position + _PIECES_READ, held.size)
        pieces = tuple(Piece(held, i) for i in range(read.position, end))
        return answer._replace(size=held.size, data=pieces)  # type: ignore[arg-type]

    def _store(self, snapshot: SnapshotId, position: int, data: Any, is_last: bool) -> None:
        pieces = self._pieces.setdefault(snapshot, [])
        del pieces[position:]
        pieces.extend(data)
        if is_last:
            whole = pieces[0].snapshot
            is_good = len(pieces) == whole.size and all(
                piece.position == i and piece.snapshot == whole for i, piece in enumerate(pieces)
            )
            if not is_good and len({piece.snapshot.source for piece in pieces}) > 1:
                raise Violation(f"R3: {self.key} made a snapshot of pieces of several")
            self.later(self._disk_ms(), lambda: self.tell(SnapshotReady(snapshot, is_good)))

    def take_snapshot(self) -> None:
        """Take a snapshot of the committed part of the log, as the snapshotter does."""
        log, end = self.log, self.mark
        if (
            not self.is_alive
            or end <= (log.snapshots[-1].end_offset if log.snapshots else 0)
            or end > log.end_offset
        ):
            return
        voters, version = log.voters.at(end)
        source = self.world.new_number()
        snapshot = Snapshot(
            SnapshotId(end, log.epochs.epoch_below(end)),
            voters,
            version,
            self.world.oracle.digest(end),
            source,
            self.world.random.randint(1, 8),
        )
        log.take_snapshot(snapshot, self.world.random.choice((1, 2)))
