"""Attempt at a cut: whom the keeper asks for what, and when the answers are one moment. [P]

*begin*: each broker closes its gate (`partition/gate.py`) and tells how far its metadata goes. Once all have,
*take*: each notes the ends of the partitions that it leads, and opens. No metadata that anybody acted on lies
above the greatest offset told, so once the keeper's own metadata has that, it must know a leader for each
partition, and that very leader, in that very epoch, must have answered. Then *save*: each uploads what the
archive lacks up to its ends, and names its tails.

Where any of that fails the attempt is void, and every broker that was asked is told. An attempt that is loose
closes no gates, and takes of a partition without a leader, or whose leader does not answer or cannot read its
log, what the cut before has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from service.remote.format.cut_codec import NEVER_LED, NO_LEADER, PartitionCut, Place, TailRef

TAKE_MS: Final = 5_000
"""Brokers open their gates by themselves, and say so where *take* comes too late: what is awaited here is
only the answer, which may be long."""
SAVE_MS: Final = 60_000
"""Brokers that have not saved their records by then make the attempt void; a later one goes on with what
they have."""


class CutStep(IntEnum):
    """Requests to a broker, as numbered on the wire."""

    BEGIN = 0
    TAKE = 1
    SAVE = 2
    VOID = 3


class AttemptPhase(Enum):
    """State of an attempt; in `CHECK` the caller waits for its metadata and calls `check`."""

    BEGIN = "begin"
    TAKE = "take"
    CHECK = "check"
    SAVE = "save"
    DONE = "done"
    VOID = "void"


class Ask(NamedTuple):
    """One request to one broker."""

    broker_id: int
    step: CutStep


class Led(NamedTuple):
    """A partition as the keeper's metadata has it; `leader_id` is -1 where it has no leader."""

    topic_id: UUID
    partition: int
    leader_id: int
    leader_epoch: int


class CutAttempt:
    """One attempt at a cut. Methods return the requests to send; `phase` and `why` tell what became of it.

    Answers that come late, or twice, or from brokers that were not asked, change nothing.
    """

    def __init__(
        self, brokers: Iterable[int], *, is_exact: bool, hold_ms: int, metadata_end: int = 0
    ) -> None:
        """`brokers` are all that are not fenced. `hold_ms`: most time that gates are closed. `metadata_end`:
        of the newest cut, so that none has less than one before it."""
        self.is_exact = is_exact
        self.phase = AttemptPhase.BEGIN if is_exact else AttemptPhase.TAKE
        self.why = ""
        self.has_missed = False
        """a gate was closed too late, or had opened by itself"""
        self.metadata_end = metadata_end
        self.due_ms = 0
        """the time at which the attempt is void unless it got on; of the caller's clock"""
        self.ends: dict[Place, PartitionCut] = {}
        self.offline: dict[Place, int] = {}
        """partitions whose logs have failed, with their leaders, as far as these have answered"""
        self.tails: list[TailRef] = []
        self.topics: dict[UUID, tuple[PartitionCut, ...]] = {}
        self._brokers = frozenset(brokers)
        self._hold_ms = hold_ms
        self._taken: list[Mapping[Place, PartitionCut]] = []
        """ends by broker, that are not among `ends` yet"""
        self._owing: set[int] = set()
        self._lost: set[int] = set()

    def start(self, now_ms: int) -> list[Ask]:
        """Return the first requests."""
        if not self._brokers:
            return self.fail("no broker is active")
        if self.is_exact:
            return self._ask(AttemptPhase.BEGIN, CutStep.BEGIN, now_ms + self._hold_ms)
        return self._ask(AttemptPhase.TAKE, CutStep.TAKE, now_ms + TAKE_MS)

    def begun(
        self, broker_id: int, metadata_end: int, now_ms: int, offline: Iterable[Place] = ()
    ) -> list[Ask]:
        """A broker has closed its gate; its metadata ends at `metadata_end`, exclusive. It leads the
        partitions that are `offline`, and cannot tell what was seen of them: an exact cut needs them."""
        if not self._answered(AttemptPhase.BEGIN, broker_id):
            return []
        self.offline.update(dict.fromkeys(offline, broker_id))
        if self.offline:
            return self.fail(f"broker {broker_id} cannot read the logs of {len(self.offline)} partitions")
        self.metadata_end = max(self.metadata_end, metadata_end)
        if self._owing:
            return []
        return self._ask(AttemptPhase.TAKE, CutStep.TAKE, now_ms + TAKE_MS)

    def taken(
        self,
        broker_id: int,
        metadata_end: int,
        ends: Mapping[Place, PartitionCut],
        now_ms: int,
        offline: Iterable[Place] = (),
    ) -> list[Ask]:
        """A broker has noted the ends of all partitions that it leads but those that are `offline`."""
        if not self._answered(AttemptPhase.TAKE, broker_id):
            return []
        self.offline.update(dict.fromkeys(offline, broker_id))
        if not self.is_exact:
            self.metadata_end = max(self.metadata_end, metadata_end)
        self._taken.append(ends)
        self._check_all_taken(now_ms)
        return []

    def _check_all_taken(self, now_ms: int) -> None:
        if not self._owing:
            self.phase, self.due_ms = AttemptPhase.CHECK, now_ms + SAVE_MS

    def check(
        self, partitions: Iterable[Led], before: Mapping[UUID, tuple[PartitionCut, ...]]
    ) -> Iterator[None]:
        """Compare the answers with the keeper's metadata, in small steps; `failed_check` tells what was
        wrong.

        `partitions`: all of them, by topic, each topic's from 0 on, as of metadata that has `metadata_end`.
        `before`: the newest cut's rows.
        """
        for ends in self._taken:
            for place, end in ends.items():
                known = self.ends.get(place)
                if known is None or known.leader_epoch < end.leader_epoch:
                    self.ends[place] = end
                yield
        rows: dict[UUID, list[PartitionCut]] = {}
        for led in partitions:
            row = self.ends.get((led.topic_id, led.partition))
            if row is None or row.leader_epoch != led.leader_epoch or led.leader_id < 0:
                if self.is_exact:
                    leader = "no leader" if led.leader_id < 0 else f"no answer of its leader {led.leader_id}"
                    self.why = f"partition {led.partition} of topic {led.topic_id} has {leader}"
                    return
                earlier = before.get(led.topic_id, ())
                row = earlier[led.partition] if led.partition < len(earlier) else NEVER_LED
                row = row._replace(leader_epoch=NO_LEADER)
            rows.setdefault(led.topic_id, []).append(row)
            yield
        if self.is_exact:
            # The keeper's metadata may be newer than the cut's: the topic would come back, and empty.
            for topic_id, _ in self.ends:
                if topic_id not in rows:
                    self.why = f"topic {topic_id} was deleted while the cut was taken"
                    return
                yield
        self.topics = {topic_id: tuple(found) for topic_id, found in rows.items()}

    def checked(self, now_ms: int) -> list[Ask]:
        """Go on after `check`: have brokers save their records, or end an attempt that is not one moment."""
        if self.phase is not AttemptPhase.CHECK:
            return []
        if self.why:
            return self.fail(self.why)
        return self._ask(AttemptPhase.SAVE, CutStep.SAVE, now_ms + SAVE_MS)

    def note_saved(self, ends: Mapping[Place, PartitionCut]) -> Iterator[None]:
        """Take over, in small steps, the rows that a broker answered to *save*: of them more is saved, or
        waited for, than it answered to *take*. Call it before `saved`."""
        topics: dict[UUID, list[PartitionCut]] = {}
        for (topic_id, partition), row in ends.items():
            yield
            if topic_id not in self.topics:
                continue
            rows = topics.get(topic_id)
            if rows is None:
                rows = topics[topic_id] = list(self.topics[topic_id])
            if partition < len(rows) and rows[partition][:4] == row[:4]:
                rows[partition] = row
        self.topics.update((topic_id, tuple(rows)) for topic_id, rows in topics.items())

    def saved(self, broker_id: int, tails: Iterable[TailRef]) -> list[Ask]:
        """A broker has uploaded what was lacking; `tails` are those that no cut names yet."""
        if self._answered(AttemptPhase.SAVE, broker_id):
            self.tails += tails
            if not self._owing:
                self.phase = AttemptPhase.DONE
        return []

    def failed(self, broker_id: int, reason: str, now_ms: int) -> list[Ask]:
        """A broker refused a step, or its answer did not come."""
        if broker_id not in self._owing:
            return []
        if self.is_exact or self.phase is AttemptPhase.SAVE:
            self.has_missed = self.phase is AttemptPhase.TAKE
            return self.fail(f"broker {broker_id}: {reason}")
        self._owing.discard(broker_id)
        self._lost.add(broker_id)
        if len(self._lost) == len(self._brokers):
            return self.fail(f"no broker answers; broker {broker_id}: {reason}")
        self._check_all_taken(now_ms)
        return []

    def overdue(self, now_ms: int) -> list[Ask]:
        """End an attempt whose time is over; call it from `due_ms` on."""
        if self.is_over or now_ms < self.due_ms:
            return []
        if self.phase is AttemptPhase.CHECK:
            return self.fail(f"the keeper's metadata does not reach offset {self.metadata_end}")
        if not self.is_exact and self.phase is AttemptPhase.TAKE:
            asks: list[Ask] = []
            for broker_id in sorted(self._owing):
                asks += self.failed(broker_id, "no answer", now_ms)
            return asks
        names = ", ".join(map(str, sorted(self._owing)))
        self.has_missed = self.phase is AttemptPhase.BEGIN
        return self.fail(f"no answer to {self.phase.value} from broker {names}")

    def fail(self, why: str) -> list[Ask]:
        """End the attempt: it is void."""
        if self.is_over:
            return []
        self.phase, self.why = AttemptPhase.VOID, why
        self._owing.clear()
        return [Ask(one, CutStep.VOID) for one in sorted(self._brokers - self._lost)]

    @property
    def is_over(self) -> bool:
        return self.phase in (AttemptPhase.DONE, AttemptPhase.VOID)

    def _ask(self, phase: AttemptPhase, step: CutStep, due_ms: int) -> list[Ask]:
        self.phase, self.due_ms = phase, due_ms
        self._owing = set(self._brokers - self._lost)
        return [Ask(one, step) for one in sorted(self._owing)]

    def _answered(self, phase: AttemptPhase, broker_id: int) -> bool:
        if self.phase is not phase or broker_id not in self._owing:
            return False
        self._owing.discard(broker_id)
        return True
