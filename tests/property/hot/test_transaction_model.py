"""Transactions of a log, compared with a list of its batches.

Any order of transactional and other batches and markers, appended as a leader or as a follower, one by one or
in runs; rolls, cleanings, cuts, deletions at the start, stops and crashes, lost snapshots, torn and lost
indexes, and producers that expire. At each moment the open transactions, the first unstable offset and the
rows are those of a replay of the list (X5, X6), and a consumer of committed records sees those alone.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.steps import at_once
from service.config.settings import LogConfig
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.records.batch import complete_headers, read_header, stamp
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.markers import encode_marker, read_marker
from service.records.scan import scan_batches
from service.records.txn_rows import AbortedEntry, encode_row
from service.records.validation import AppendOrigin, ValidatedBatch
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean
from tests.unit.hot.logs import START_MS, TIP

EXPIRATION_MS: Final = 60_000
PRODUCERS: Final = st.integers(1, 4)
EVERYTHING: Final = 2**62


class Written(NamedTuple):
    """A batch: of a producer's transaction, its marker, or of nobody (-1)."""

    producer: int
    base: int
    last: int
    is_marker: bool = False
    is_commit: bool = False


class Replayed(NamedTuple):
    """What follows from a list of batches and a high watermark."""

    open: list[tuple[int, int]]
    unstable: int | None
    rows: list[AbortedEntry]
    aborted: set[int]
    """offsets of their records"""


def replay(history: list[Written], high_watermark: int) -> Replayed:
    spans: dict[int, int] = {}
    late: list[int] = []
    rows: list[AbortedEntry] = []
    aborted: set[int] = set()
    for one in history:
        if one.producer < 0:
            continue
        if not one.is_marker:
            spans.setdefault(one.producer, one.base)
            continue
        first = spans.pop(one.producer, None)
        if first is None:
            continue
        if one.base >= high_watermark:
            late.append(first)
        if not one.is_commit:
            rows.append(
                AbortedEntry(one.producer, first, one.base, min(spans.values(), default=one.base + 1))
            )
            for other in history:
                if other.producer == one.producer and not other.is_marker and first <= other.base < one.base:
                    aborted.update(range(other.base, other.last + 1))
    open_ones = sorted(spans.items(), key=lambda span: span[1])
    return Replayed(open_ones, min([*spans.values(), *late], default=None), rows, aborted)


class TransactionsOfALog(RuleBasedStateMachine):
    @initialize(segment_bytes=st.integers(200, 1500), is_compacted=st.booleans())
    def begin(self, segment_bytes: int, is_compacted: bool) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="firn-transactions-"))
        self.clock = ManualClock(START_MS)
        self.is_compacted = is_compacted
        self.options: dict[str, Any] = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": 100,
            "file_delete_delay_ms": 0,
            "cleanup_policy": "compact,delete" if is_compacted else "delete",
            "min_cleanable_dirty_ratio": 0.0,
        }
        self.history: list[Written] = []
        self.mark = self.expired = self.judged = 0
        self.numbers = count()
        self.log = self.open(0, 0, -1, clean=True)

    def open(self, recovery_point: int, start: int, cleaned_offset: int, *, clean: bool) -> LocalLog:
        log = LocalLog.open(
            self.dir / "events-0", TIP, LogConfig(**self.options), world=make_world(self.clock),
            recovery_point=recovery_point, log_start_offset=start, clean=clean,
            cleaned_offset=cleaned_offset, files=FileCache(SystemDisk(), 3),
            producer_expiration_ms=EXPIRATION_MS, high_watermark=self.mark,
        )  # fmt: skip
        self.mark = max(self.mark, start)
        log.high_watermark_moved(self.mark)
        return log

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            shutil.rmtree(self.dir)

    # What is written

    def data(self, producer: int, records: int) -> bytearray:
        """A batch whose records have keys of their own, so that compaction keeps all of them."""
        is_of_one = producer >= 0
        epoch = 0 if is_of_one else -1
        builder = BatchBuilder(producer_id=producer, producer_epoch=epoch, is_transactional=is_of_one)
        for _ in range(records):
            builder.add(self.clock.now_ms(), b"%d" % next(self.numbers), b"value")
        return builder.build()

    @rule(producer=st.sampled_from([-1, 1, 2, 3, 4]), records=st.integers(1, 3))
    def leader_appends(self, producer: int, records: int) -> None:
        data = memoryview(self.data(producer, records))
        one = ValidatedBatch(data, read_header(data), START_MS, 0, records, AppendOrigin.COORDINATOR)
        info = self.log.append(one, 0, self.clock.now_ms(), VERIFICATION_OFF)
        self.history.append(Written(producer, info.first_offset, info.last_offset))

    @rule(markers=st.lists(st.tuples(PRODUCERS, st.booleans()), min_size=1, max_size=4))
    def leader_ends(self, markers: list[tuple[int, bool]]) -> None:
        end = self.log.log_end_offset
        asked = [Marker(producer, 0, 1, is_commit, 1) for producer, is_commit in markers]
        self.log.append_markers(asked, 0, self.clock.now_ms())
        for at, (producer, is_commit) in enumerate(markers, end):
            self.history.append(Written(producer, at, at, True, is_commit))
        assert self.log.log_end_offset == end + len(markers)

    @rule(
        run=st.lists(
            st.tuples(st.sampled_from([-1, 1, 2, 3, 4]), st.sampled_from(["data", "commit", "abort"])),
            min_size=1,
            max_size=12,
        ),
        on_a_thread=st.booleans(),
    )
    def follower_appends(self, run: list[tuple[int, str]], on_a_thread: bool) -> None:
        offset, data = self.log.log_end_offset, bytearray()
        for producer, kind in run:
            is_marker = producer >= 0 and kind != "data"
            is_commit = is_marker and kind == "commit"
            if is_marker:
                one = encode_marker(producer, 0, 1, is_commit=is_commit, timestamp=self.clock.now_ms())
            else:
                one = self.data(producer, 1)
            stamp(one, 0, offset, 0)
            self.history.append(Written(producer, offset, offset, is_marker, is_commit))
            data += one
            offset += 1
        view = memoryview(data)
        scan = scan_batches(view)
        append = self.log.appender.begin(view, scan) if on_a_thread else None
        if append is None:
            self.log.appender.append_fetched(view, scan)
        else:
            append.write()
            self.log.appender.finish(append)

    # What becomes of the log

    @rule(data=st.data())
    def high_watermark_rises(self, data: st.DataObject) -> None:
        borders = [one.last + 1 for one in self.history if one.last + 1 > self.mark]
        if borders:
            self.mark = data.draw(st.sampled_from(borders))
            if self.log.first_unstable_offset is not None:  # as a partition tells it
                self.log.high_watermark_moved(self.mark)

    @rule()
    def roll(self) -> None:
        self.log.appender.roll()

    @rule()
    def flush(self) -> None:
        self.log.durability.flush()

    def remove(self) -> None:
        for path in self.log.deletion_queue.take_due(self.clock.now_ms()):
            path.unlink(missing_ok=True)

    @precondition(lambda self: self.is_compacted)
    @rule()
    def clean(self) -> None:
        clean(self.log)
        self.judged = self.mark
        self.remove()

    @rule(data=st.data())
    def start_moves(self, data: st.DataObject) -> None:
        self.log.deletion.advance_log_start(data.draw(st.integers(self.log.log_start_offset, self.mark)))
        self.log.deletion.delete_below_start()
        self.remove()

    @rule(data=st.data(), computed_before=st.booleans(), is_unclean=st.booleans())
    def cut(self, data: st.DataObject, computed_before: bool, is_unclean: bool) -> None:
        # A cleaning has removed what markers say is aborted: without them the records would be open again,
        # but they are gone, as in Kafka.
        least = max(self.log.local_log_start_offset, self.log.state.cleaned_offset, self.judged)
        if not is_unclean:
            least = max(self.mark, least)
        offset = data.draw(st.integers(least, self.log.log_end_offset))
        truncation = self.log.truncation
        producers = truncation.producers_at(truncation.end_after(offset)) if computed_before else None
        end = truncation.truncate_to(offset, producers)
        self.history = [one for one in self.history if one.base < end]
        self.mark = min(self.mark, end)

    @rule()
    def expire(self) -> None:
        self.mark = self.log.log_end_offset
        self.log.high_watermark_moved(self.mark)
        self.expired = self.mark
        self.clock.advance(EXPIRATION_MS + 10)
        at_once(self.log.producers.expire(self.clock.now_ms()))
        assert len(self.log.producers) == len(replay(self.history, 0).open)

    @rule(
        is_clean=st.booleans(),
        loses_snapshots=st.booleans(),
        damage=st.sampled_from(["none", "lost", "torn", "reversed", "more"]),
        older=st.integers(0, 20),
    )
    def restart(self, is_clean: bool, loses_snapshots: bool, damage: str, older: int) -> None:
        log = self.log
        if not self.is_compacted:
            # Of the last checkpoint, which is not as old as what has expired.
            self.mark = max(self.mark - older, min(self.expired, self.mark))
        log.close(clean=is_clean)
        if loses_snapshots and not log.first_base_offset:
            for path in log.dir.glob("*.snapshot"):
                path.write_bytes(b"")
        recovered = max((one.base_offset for one in log if one.base_offset <= log.recovery_point), default=0)
        for path in log.dir.glob("*.txnindex"):
            self.damage(path, damage, is_read=not is_clean and int(path.stem) >= recovered)
        self.log = self.open(
            log.recovery_point, log.log_start_offset, log.state.cleaned_offset, clean=is_clean
        )

    def damage(self, path: Path, damage: str, *, is_read: bool) -> None:
        """Damage an index so that the next opening sees it, or makes it anew in any case."""
        data = path.read_bytes()
        rows = [data[at : at + 34] for at in range(0, len(data), 34)]
        match damage:
            case "lost" if is_read:
                path.unlink()
            case "torn":
                path.write_bytes(data + b"torn")
            case "reversed" if len(rows) > 1:
                path.write_bytes(b"".join(reversed(rows)))
            case "more":
                path.write_bytes(data + encode_row(AbortedEntry(9, 0, EVERYTHING, 1)))

    # What must hold

    @invariant()
    def it_is_what_its_batches_say(self) -> None:
        if not hasattr(self, "log"):
            return
        log, start = self.log, self.log.log_start_offset
        right = replay(self.history, self.mark)
        unstable = None if right.unstable is None else max(right.unstable, start)
        assert log.first_unstable_offset == unstable
        transactions = log.producers.transactions
        assert right.open == ([] if transactions is None else list(transactions))
        entries = [(pid, entry.txn_first_offset) for pid, entry in log.producers]
        assert right.open == sorted([one for one in entries if one[1] >= 0], key=lambda span: span[1])
        if not self.is_compacted:
            rows = [row for row in right.rows if row.last_offset >= log.first_base_offset]
            assert log.aborted_transactions(0, EVERYTHING) == rows
            files = sorted(log.dir.glob("*.txnindex"))
            assert b"".join(path.read_bytes() for path in files) == b"".join(map(encode_row, rows))
        stable = min(self.mark, self.mark if unstable is None else unstable)
        for offset in {start, (start + stable) // 2, stable - 1}:
            if start <= offset < stable:
                assert self.seen(offset, stable) == self.committed(right, offset, stable)

    def committed(self, right: Replayed, begin: int, end: int) -> list[int]:
        return [
            offset
            for one in self.history
            if not one.is_marker
            for offset in range(one.base, one.last + 1)
            if begin <= offset < end and offset not in right.aborted
        ]

    def seen(self, begin: int, end: int) -> list[int]:
        """Offsets of the records that a client shows which fetches from `begin` to `end` and filters."""
        log, found = self.log, []
        aborted = sorted(log.aborted_transactions(begin, end), key=lambda row: row.first_offset)
        skipped: set[int] = set()
        offset = begin
        while offset < end:
            read = log.read(offset, 1 << 20, end)
            assert read.slice is not None
            data = b"".join(part.read() for part in (read.slice, *read.more))
            for header in complete_headers(data):
                while aborted and aborted[0].first_offset <= header.last_offset:
                    skipped.add(aborted.pop(0).producer_id)
                offset = header.next_offset
                if header.is_control:
                    marker = read_marker(lambda size, at, d=data: d[at : at + size], header)  # type: ignore[misc]
                    if marker is not None and not marker.is_commit:
                        skipped.discard(header.producer_id)
                elif not header.is_transactional or header.producer_id not in skipped:
                    records = iter_records(data[header.position : header.end])
                    found += [one.offset for one in records if one.offset >= begin]
        return found


TestTransactions = TransactionsOfALog.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
