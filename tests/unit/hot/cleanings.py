"""Logs of keys and values, and their cleaning at once, for the tests of compaction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from service.hot.cleaning import plan
from service.hot.cleaning.cleaning import Cleaning
from service.hot.cleaning.log_rewrite import CleanerSettings, Throttle
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.records.batch import CompressionType, complete_headers, read_header
from service.records.decode import Record, iter_records
from service.records.validation import ValidatedBatch
from tests.support.compaction import START_MS, Pair, make_batch
from tests.unit.hot.logs import at_once


def put(
    log: LocalLog,
    pairs: Sequence[Pair],
    *,
    codec: CompressionType = CompressionType.NONE,
    timestamp: int = START_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> int:
    """Append one batch; its first offset."""
    data = memoryview(bytearray(make_batch(0, pairs, codec=codec, timestamp=timestamp, producer=producer)))
    one = ValidatedBatch(data, read_header(data), timestamp + len(pairs) - 1, len(pairs) - 1, len(pairs))
    return log.append(one, 0, log.state.world.clock.now_ms()).first_offset


def dirt_of(log: LocalLog) -> plan.DirtyLog | None:
    """Return how dirty the log is; everything flushed and stable may be cleaned."""
    state, unstable = log.state, log.first_unstable_offset
    stable = log.recovery_point if unstable is None else min(log.recovery_point, unstable)
    facts = plan.LogFacts(
        state.local_start, state.end_offset, state.cleaned_offset, stable, state.segments.all
    )
    return plan.dirty_log(facts, log.config, state.world.clock.now_ms())


def clean(log: LocalLog, settings: CleanerSettings | None = None) -> bool:
    """Clean the log up to its active segment, in as many parts as it takes; False where it is clean already.

    Raises what a cleaning raises.
    """
    log.durability.flush()
    dirt = dirt_of(log)
    if dirt is None:
        return False

    async def work() -> None:
        io = LogIo(log.state.world.threads, 1)
        left: plan.DirtyLog | None = dirt
        try:
            while left is not None:
                throttle = Throttle(log.state.world.clock)
                one = Cleaning(
                    log,
                    io,
                    io,
                    log.state.world,
                    lambda: settings or CleanerSettings(),
                    throttle,
                    lambda _: True,
                )
                await one.run(left)
                left = dirt_of(log)
        finally:
            await io.finish()

    at_once(work())
    return True


def records_in(log: LocalLog) -> list[Record]:
    """All records as a consumer gets them, each read beginning where the last one ended."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 16)
        assert read.slice is not None, f"nothing at {offset}"
        data = b"".join(part.read() for part in (read.slice, *read.more))
        for header in complete_headers(data):
            records = iter_records(data[header.position : header.end], include_control=True)
            found += (record for record in records if record.offset >= offset)
            offset = header.next_offset
    assert all(one.offset < other.offset for one, other in pairwise(found))
    return found
