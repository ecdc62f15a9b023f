"""Plans to write a commit that is like its connection's last one. [P]

A consumer commits the same partitions again and again. A `CommitPlan` has the body of its last request, and
the batch and the response that this led to: of the next request only offsets and leader epochs are copied
(`records/commit_plan_kernel`). What a commit rests on is asked anew each time: that its topics are those they
were (`TopicsView.token`), that its shard is (one that was loaded again has other offsets, under the same
topics), that its member may commit (`quick_commits.accepted_effects`), that its client may use the topics.

The plans are bounded by their positions. Who commits other partitions each time gets plans ever more seldom.
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

MOST_POSITIONS: Final = 32_768
"""Most positions in all plans together: about 300 bytes each."""
_OWN: Final = 5
"""Positions that a plan counts for besides those that it has."""
_CRC: Final = struct.Struct(">I")
_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_AT: Final = 4
_NOTHING: Final = memoryview(b"")


class CommitPlan:
    """A plain commit that is alone in its batch (`WholeBatch`): the last one, or one that is like it.

    ``plain`` is the parsed request without its bytes, ``names`` are its topics; ``partition`` is the shard's,
    whose offsets a plan does not keep alive.
    """

    __slots__ = (
        "_answer", "_batch", "_body", "_covered", "_frame", "_marks", "_offsets", "_places", "_position",
        "_row", "_tails", "_token", "count", "longest_metadata", "misses", "names", "partition", "plain",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        plain: PlainRequest,
        parts: PlanParts,
        body: bytes,
        answer: bytes,
        token: object,
        partition: int,
        offsets: CommittedOffsets,
    ) -> None:
        self.plain = plain._replace(frame=_NOTHING)
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
        self._body = body
        self._answer = bytearray(answer)
        self._token = token
        self._offsets = ref(offsets)
        self._frame, self._position = _NOTHING, 0
        self.misses = 0
        """other commits of the connection since this one"""

    def takes(
        self, frame: memoryview, position: int, version: int, token: object, offsets: CommittedOffsets
    ) -> bool:
        """Return whether the request whose body begins at `position` is like the last one; it is the next to
        be built then. `token`: that of the topics now; `offsets`: those of the shard now."""
        if version != self.plain.version or token != self._token or self._offsets() is not offsets:
            return False
        if not is_same(frame, position, self._body, self._marks):
            return False
        self._frame, self._position, self.misses = frame, position, 0
        return True

    def leave(self) -> None:
        """Forget the request that was taken: it is written in another way."""
        self._frame = _NOTHING

    def build(self, offset: int, leader_epoch: int, now_ms: int) -> bytearray:
        batch, frame, self._frame = self._batch, self._frame, _NOTHING
        fill_batch(frame, self._position, self._marks, batch, offset, leader_epoch, now_ms)
        _CRC.pack_into(batch, CRC_AT, crc32c(self._covered))
        return batch

    def replay(self, offset: int) -> None:
        offsets = self._offsets()
        assert offsets is not None  # the shard's, as of `takes`
        rows = offsets.committed_rows(self.plain.group_id)
        fill_rows(self._batch, self._marks, self._places, self._tails, offset, self._row, rows)

    def answer(self, correlation_id: int) -> bytes:
        """Return the encoded response, without errors."""
        _CORRELATION.pack_into(self._answer, _CORRELATION_AT, correlation_id)
        return bytes(self._answer)


class CommitPlans:
    """Plans by the number of their connection. Owned by the event loop."""

    __slots__ = ("_plans", "positions")

    def __init__(self) -> None:
        self._plans: dict[int, CommitPlan] = {}
        self.positions = 0
        """of all plans"""

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, connection_id: int) -> CommitPlan | None:
        return self._plans.get(connection_id)

    def wants(self, connection_id: int, size: int) -> bool:
        """Return whether a commit that no plan takes, of `size` bytes, gets one. Of one connection the 1st,
        2nd, 4th, 8th and so on in a row do."""
        if size > MOST_BYTES:
            return False
        plan = self._plans.get(connection_id)
        if plan is None:
            return True
        plan.misses += 1
        return plan.misses & (plan.misses - 1) == 0

    def put(self, connection_id: int, plan: CommitPlan) -> None:
        """Keep a plan in the place of the connection's last one, and drop the oldest ones beyond
        `MOST_POSITIONS`."""
        before = self._plans.pop(connection_id, None)
        if before is not None:
            plan.misses = before.misses
            self.positions -= before.count + _OWN
        self._plans[connection_id] = plan
        self.positions += plan.count + _OWN
        while self.positions > MOST_POSITIONS:
            self.drop(next(iter(self._plans)))

    def drop(self, connection_id: int) -> None:
        """Forget the plan of a connection, which has ended."""
        plan = self._plans.pop(connection_id, None)
        if plan is not None:
            self.positions -= plan.count + _OWN
