"""Plans to write a commit that is like its connection's last one. [P]

A consumer commits the same partitions again and again. A `CommitPlan` has the bytes of its last request, and
the batch and the response that this led to: of the next request only offsets and leader epochs are copied
(`records/commit_plan_kernel`). What a commit rests on is asked anew each time: that its topics are those they
were (`TopicsView.token`), that its shard is (one that was loaded again has other offsets, under the same
topics), that its member may commit (`quick_commits.accepted_effects`), that its client may use the topics.

The plans are bounded by the bytes that they keep. To make one costs more than it saves once: who commits
other partitions each time gets plans ever more seldom, and of new connections without room only some do.
"""

from __future__ import annotations

import struct
from typing import Final
from weakref import ref

from crc32c import crc32c

from service.groups.offsets import CommittedOffsets
from service.groups.quick_commits import PlainRequest, PlanParts
from service.records.batch import CRC_AT, CRC_START
from service.records.builder import BatchBuilder
from service.records.commit_plan_kernel import MOST_BYTES, ROW_HEAD_BYTES, fill_batch, fill_rows, is_same

MOST_KEPT: Final = 10 << 20
"""Most bytes that all plans together keep: some 3,000 plans of ten positions without metadata."""
_OWN: Final = 1200
"""Bytes of a plan besides those of its request, and of what is written and answered."""
_POSITION: Final = 60
"""The same, of each position."""
_OFTEN: Final = 16
"""A plan that was taken as often was worth to make: another may follow at once."""
_STRANGERS: Final = 16
"""One connection in so many for which there is no room gets the room of another."""
_CRC: Final = struct.Struct(">I")
_CORRELATION_AT: Final = 4
"""Position of the correlation id in a request without its size, and in a response with it."""
COMPARED_FROM: Final = 8
"""Position in a request behind which all but offsets and leader epochs is compared: the correlation id
differs."""
_NOTHING: Final = memoryview(b"")


class CommitPlan:
    """A plain commit that is alone in its batch (`WholeBatch`): the last one, or one that is like it.

    ``plain`` is the parsed request without its bytes, ``names`` are its topics; ``partition`` is the shard's,
    whose offsets a plan does not keep alive.
    """

    __slots__ = (
        "_answer", "_batch", "_covered", "_frame", "_head", "_marks", "_offsets", "_places", "_rest", "_row",
        "_tails", "_token", "client_id", "count", "is_like", "is_tried", "kept", "longest_metadata", "misses",
        "names", "partition", "plain", "size", "taken", "wait",
    )  # fmt: skip

    def __init__(
        self,
        plain: PlainRequest,
        parts: PlanParts,
        client_id: str,
        answer: bytes,
        token: object,
        partition: int,
        offsets: CommittedOffsets,
    ) -> None:
        self._head, self._rest = bytes(plain.frame[:_CORRELATION_AT]), bytes(plain.frame[COMPARED_FROM:])
        self.plain = plain._replace(frame=_NOTHING)
        self.client_id = client_id
        self.names = parts.names
        self.partition = partition
        self.count = len(parts.tails)
        builder = BatchBuilder()
        builder.add_encoded(0, self.count, parts.records)
        self._batch = builder.build()
        self._covered = memoryview(self._batch)[CRC_START:]
        self.size = len(self._batch)
        self._marks, self._tails = parts.marks, parts.tails
        self._places: list[object] = [offsets.place_of(rest) for rest in parts.rests]
        longest = max(map(len, parts.tails))
        self.longest_metadata = longest - 16
        self._row = bytearray(ROW_HEAD_BYTES + longest)
        self._answer = bytearray(answer)
        self._token = token
        self._offsets = ref(offsets)
        self._frame = _NOTHING
        self.kept = _OWN + _POSITION * self.count + 2 * len(self._rest) + 4 * len(client_id)
        """bytes that it keeps; those of the names of group and member are in the request"""
        self.kept += self.size + len(self._answer) + len(self._row) + sum(map(len, parts.tails))
        self.is_like = False
        """whether the last request that it was compared with is like it"""
        self.is_tried = False
        """whether it was tried for the request at hand, which has to be parsed now"""
        self.taken = 0
        self.misses = 0
        """other commits of the connection since this one was taken"""
        self.wait = 1
        """so many of them get another plan"""

    def takes(self, frame: memoryview, token: object, offsets: CommittedOffsets) -> bool:
        """Return whether a request is like the last one, header and all but the correlation id; it is the
        next to be built then. `token`: that of the topics now; `offsets`: those of the shard now."""
        self.is_like = (
            token == self._token
            and self._offsets() is offsets
            and is_same(frame, COMPARED_FROM, self._rest, self._marks)
            and frame[:_CORRELATION_AT] == self._head
        )
        if self.is_like:
            self._frame, self.misses = frame, 0
            self.taken += 1
        return self.is_like

    def leave(self) -> None:
        """Forget the request that was taken: its bytes are the connection's again."""
        self._frame = _NOTHING

    def build(self, offset: int, leader_epoch: int, now_ms: int) -> bytearray:
        batch = self._batch
        fill_batch(self._frame, COMPARED_FROM, self._marks, batch, offset, leader_epoch, now_ms)
        _CRC.pack_into(batch, CRC_AT, crc32c(self._covered))
        return batch

    def replay(self, offset: int) -> None:
        offsets = self._offsets()
        assert offsets is not None  # the shard's, as of `takes`
        rows = offsets.committed_rows(self.plain.group_id)
        fill_rows(self._batch, self._marks, self._places, self._tails, offset, self._row, rows)

    def answer(self) -> bytes:
        """Return the encoded response to the request that was taken, without errors."""
        self._answer[_CORRELATION_AT:COMPARED_FROM] = self._frame[_CORRELATION_AT:COMPARED_FROM]
        return bytes(self._answer)


class CommitPlans:
    """Plans by the number of their connection. Owned by the event loop."""

    __slots__ = ("_is_full", "_plans", "_strangers", "kept")

    def __init__(self) -> None:
        self._plans: dict[int, CommitPlan] = {}
        self._is_full = False
        self._strangers = 0
        """connections without a plan since it is full"""
        self.kept = 0
        """bytes of all plans"""

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, connection_id: int) -> CommitPlan | None:
        return self._plans.get(connection_id)

    def wants(self, connection_id: int, size: int) -> bool:
        """Return whether a commit that no plan takes, of `size` bytes, gets one. Of a connection that never
        commits the same the 1st, 2nd, 4th, 8th and so on do."""
        if size > MOST_BYTES:
            return False
        plan = self._plans.get(connection_id)
        if plan is not None:
            plan.misses += 1
            return plan.misses >= plan.wait
        if not self._is_full:
            return True
        self._strangers += 1
        return self._strangers % _STRANGERS == 0

    def put(self, connection_id: int, plan: CommitPlan) -> None:
        """Keep a plan in the place of the connection's last one, and drop the oldest ones beyond
        `MOST_KEPT`."""
        before = self._plans.pop(connection_id, None)
        if before is not None:
            plan.wait = 1 if before.taken >= _OFTEN else 2 * before.wait
            self.kept -= before.kept
        self._plans[connection_id] = plan
        self.kept += plan.kept
        while self.kept > MOST_KEPT:
            self.drop(next(iter(self._plans)))
            self._is_full = True

    def drop(self, connection_id: int) -> None:
        """Forget the plan of a connection, which has ended."""
        plan = self._plans.pop(connection_id, None)
        if plan is not None:
            self.kept -= plan.kept
            self._is_full = False
