"""A run of small batches that clients produced, taken from their requests by `produce_kernel`. [P]

The memory for it is made once, and used again by the next run: whoever takes a run is done with it, its
batches written, before the next one is taken.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from service.base.types import Buffer
from service.records.batch import PRODUCER_ID_AT, BatchHeader, read_header
from service.records.produce_kernel import HEAD_FIELDS, LAST_OFFSET, OFFSET, ROW_FIELDS, read_head, take_run

MOST_REQUESTS: Final = 256
"""Most requests of a run."""
RUN_BYTES: Final = 64 << 10
"""Most bytes of batches of a run."""
ANSWERS_BYTES: Final = 32 << 10
"""Most bytes of its responses."""


class ProducedRun(NamedTuple):
    """Sound batches, one behind the other in `data`, with offsets that ascend without a gap and one leader
    epoch. All are of one producer, in sequence, or of none.

    ``rows``: `ROW_FIELDS` numbers for each. ``newest``: the greatest timestamp and the last offset of the
    first batch that has it.
    """

    data: memoryview
    batches: int
    rows: array[int]
    base_offset: int
    last_offset: int
    newest: tuple[int, int]
    has_producer: bool

    def headers(self, last: int) -> list[BatchHeader]:
        """Return the headers of the first batch and of the `last` ones."""
        first = read_header(self.data)
        rest = range(max(1, self.batches - last), self.batches)
        return [first, *(read_header(self.data, self.rows[at * ROW_FIELDS]) for at in rest)]


class RunTaker:
    """The memory that runs are taken into."""

    __slots__ = ("_answers", "_batches", "_head", "_rows", "_views")

    def __init__(self) -> None:
        self._head = array("q", bytes(8 * HEAD_FIELDS))
        self._rows = array("q", bytes(8 * ROW_FIELDS * MOST_REQUESTS))
        self._batches = bytearray(RUN_BYTES)
        self._answers = bytearray(ANSWERS_BYTES)
        self._views = memoryview(self._batches), memoryview(self._answers)

    def head(self, data: Buffer, start: int, end: int) -> array[int] | None:
        """Return the numbers of `produce_kernel.read_head` about the request at `start`, until the next call;
        None if it is not ordinary."""
        head = self._head
        return head if read_head(data, start, end, head) else None

    def take(
        self, data: Buffer, start: int, end: int, head_end: int, rules: array[int], template: bytes
    ) -> tuple[ProducedRun, int, bytes] | None:
        """Return the run of requests from `start` on, the position behind it, and its responses; None if the
        first request is not ordinary. `rules`, `template`: see `produce_kernel.take_run`."""
        rows = self._rows
        count, stop, size, newest, newest_offset = take_run(
            data, start, end, head_end, rules, template, self._batches, self._answers, rows
        )
        if not count:
            return None
        batches, answers = self._views
        last_offset = rows[(count - 1) * ROW_FIELDS + LAST_OFFSET]
        has_producer = self._batches[PRODUCER_ID_AT] < 0x80  # the sign of its id
        run = ProducedRun(
            batches[:size], count, rows, rules[OFFSET], last_offset, (newest, newest_offset), has_producer
        )
        return run, stop, bytes(answers[: count * len(template)])
