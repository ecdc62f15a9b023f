"""Nothing undecided is copied: a partition waits for its open transaction, says so, and goes on at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from service.console.measuring import reasons
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.inspect.fsck import fsck
from service.records.batch import iter_headers
from service.records.txn_rows import encode_row
from service.remote.reading.object_reader import open_footer_of, read_section
from service.remote.reading.reader import RemoteReader
from service.replicas.archive_producers import producers_of
from tests.support.world import make_world
from tests.unit.hot.logs import batch
from tests.unit.tiering.world import Replica, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, segment_bytes=2000)


class Ledger:
    """Transactions of a replica, whose high watermark follows its log unless it is held."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replica: Replica = world.replicas[0]
        self.log = self.replica.log
        self._sequences: dict[int, int] = {}

    def moved(self) -> None:
        before = self.replica.last_stable_offset
        self.log.high_watermark_moved(self.replica.high_watermark)
        if self.replica.last_stable_offset > before and self.replica.on_stable is not None:
            self.replica.on_stable()

    def plain(self, count: int = 2) -> None:
        self.replica.append(count, self.world.clock.now_ms())
        self.moved()

    def write(self, producer_id: int, count: int = 2, timestamp: int | None = None) -> None:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + count
        now_ms = self.world.clock.now_ms()
        one = batch(
            count,
            timestamp=now_ms if timestamp is None else timestamp,
            producer_id=producer_id,
            epoch=0,
            sequence=sequence,
            is_transactional=True,
        )
        self.log.append(one, self.replica.leader_epoch, now_ms, VERIFICATION_OFF)
        self.replica.produced += one.data
        self.moved()

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        marker = Marker(producer_id, 0, 1, is_commit, 0)
        now_ms = self.world.clock.now_ms()
        at = self.log.log_end_offset
        self.log.append_markers([marker], self.replica.leader_epoch, now_ms)
        found = self.log.read(at, 1 << 20, at + 1, True)
        assert found.slice is not None
        self.replica.produced += found.slice.read()
        self.moved()

    def fill(self, segments: int) -> None:
        """Append plain batches until so many more segments are sealed."""
        target = len(self.log.sealed.describe_all()) + segments
        while len(self.log.sealed.describe_all()) < target:
            self.plain()

    @property
    def archived(self) -> int:
        entry = self.world.entry(self.replica)
        return 0 if entry is None else entry.end_offset

    @property
    def why(self) -> str | None:
        return self.world.manager.metrics.why(self.replica.tip)


@pytest.fixture
def ledger(world: World) -> Ledger:
    return Ledger(world)


def test_an_open_transaction_holds_back_what_lies_behind_its_beginning_and_says_so(
    world: World, ledger: Ledger
) -> None:
    ledger.fill(2)
    first = ledger.log.log_end_offset
    ledger.write(7)
    ledger.fill(3)
    world.run()
    assert 0 < ledger.archived <= first
    assert ledger.why == (
        f"producer 7 has left a transaction open since 2020-09-13 12:26:40 UTC, from offset {first} on"
    )
    assert list(reasons(world.manager.metrics).items()) == [
        ("producer N has left a transaction open since N-N-N N:N:N UTC, from offset N on", 1)
    ]
    ledger.end(7, is_commit=True)
    world.run()
    assert ledger.archived == ledger.log.sealed.describe_all()[-1].last_offset + 1
    assert ledger.why is None
    world.check()
    assert fsck(world.bucket, deep=True).is_clean


def test_a_partition_goes_on_when_its_transaction_ends_without_a_wait(world: World, ledger: Ledger) -> None:
    ledger.write(7)
    ledger.fill(2)
    world.run()
    assert ledger.replica.on_stable is not None
    world.do(world.manager.run_news())
    assert ledger.archived == 0
    ledger.end(7, is_commit=False)
    world.do(world.manager.run_news())
    assert ledger.archived > 0
    assert ledger.replica.on_stable is None, "nobody waits any more"


def test_a_marker_that_is_not_replicated_holds_back_and_names_nobody(world: World, ledger: Ledger) -> None:
    ledger.write(7)
    ledger.fill(2)
    ledger.replica.held_back = 1
    ledger.end(7, is_commit=True)
    world.run()
    assert (ledger.archived, ledger.why) == (0, None)
    ledger.replica.held_back = 0
    ledger.moved()
    world.clock.advance(world.settings.interval_ms)
    world.run()
    assert ledger.archived > 0


def test_a_long_wait_is_logged_once(world: World, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    ledger.write(7)
    ledger.fill(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            world.run()
            world.clock.advance(world.settings.interval_ms)
    lines = [one.getMessage() for one in caplog.records if "transaction open" in one.getMessage()]
    assert len(lines) == 1
    assert "not copied beyond offset 0: producer 7" in lines[0]


@pytest.mark.parametrize("timestamp", [-1, 0, 1 << 60])
def test_any_timestamp_of_a_producer_can_be_told(world: World, ledger: Ledger, timestamp: int) -> None:
    ledger.write(7, timestamp=timestamp)
    ledger.fill(1)
    world.run()
    assert ledger.why is not None
    assert "producer 7 has left a transaction open since" in ledger.why


def aborts(ledger: Ledger, segments: int) -> None:
    target = len(ledger.log.sealed.describe_all()) + segments
    while len(ledger.log.sealed.describe_all()) < target:
        ledger.write(7)
        ledger.write(8, 1)
        ledger.end(7, is_commit=False)
        ledger.end(8, is_commit=True)


def test_an_index_that_is_not_the_logs_is_built_anew_with_a_line_and_copied(
    world: World, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    aborts(ledger, 1)
    (segment,) = ledger.log.sealed.describe_all()
    assert segment.txn_index_path is not None
    right = segment.txn_index_path.read_bytes()
    assert len(right) > 34
    segment.txn_index_path.write_bytes(right[:34])
    with caplog.at_level(logging.WARNING):
        world.run()
    assert segment.txn_index_path.read_bytes() == right
    assert any("building a transaction index anew" in one.getMessage() for one in caplog.records)
    (entry,) = world.live(ledger.replica)
    section = open_footer_of(world.bucket, entry).sections["txn_index"]
    assert read_section(world.bucket, entry.key, section) == right
    rows = ledger.log.aborted_transactions(0, segment.last_offset + 1)
    assert b"".join(map(encode_row, rows)).startswith(right), "look-ups see it, too"
    assert fsck(world.bucket, deep=True).is_clean


def test_archives_of_overlapping_transactions_are_clean_and_end_at_the_stable_offset(
    world: World, ledger: Ledger
) -> None:
    for round_ in range(6):
        ledger.write(100 + round_)
        aborts(ledger, 1)
        if round_ >= 2:
            ledger.end(98 + round_, is_commit=round_ % 2 == 0)
        world.run()
        assert ledger.archived <= ledger.replica.last_stable_offset
        assert fsck(world.bucket, deep=True).is_clean
    assert ledger.archived > 0
    world.reboot()
    world.run()
    world.check()


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_log_that_begins_at_the_archives_end_goes_on_with_its_transactions(
    world: World, ledger: Ledger, is_commit: bool
) -> None:
    """A new disk, or a follower far behind: what is open there began below its first segment."""
    ledger.fill(1)
    ledger.write(7)
    ledger.write(8)
    while len(ledger.log.sealed.describe_all()) < 2:
        ledger.write(7)
    # The end of 7 and of 8 lies behind the archive's end, so it is archived up to there.
    ledger.end(7, is_commit=is_commit)
    ledger.end(8, is_commit=False)
    world.run()
    archived = ledger.archived
    entry = world.entry(ledger.replica)
    assert entry is not None
    assert archived < ledger.log.log_end_offset
    reader = RemoteReader(world.bucket, make_world(world.clock), threads=1)
    end = reader.archive_end(ledger.replica.tip, entry.manifest_key).result(20)
    reader.close()
    first = end.open_from
    assert 0 < first < archived
    rest = bytes(ledger.replica.produced)
    header = next(one for one in iter_headers(rest) if one.base_offset == archived)
    del ledger.replica.produced[header.position :]
    ledger.log.truncation.restart_at(archived, 0, epochs=end.epochs, producers=producers_of(end))
    assert ledger.replica.last_stable_offset == first, "nothing of them is decided any more"
    ledger.fill(1)
    world.run()
    assert ledger.archived == archived
    ledger.end(7, is_commit=is_commit)
    ledger.end(8, is_commit=False)
    rows = ledger.log.aborted_transactions(archived, ledger.log.log_end_offset)
    assert [row.producer_id for row in rows] == ([8] if is_commit else [7, 8])
    assert rows[0].first_offset < archived, "in a row, too"
    ledger.fill(2)
    world.run()
    assert ledger.archived > rows[-1].last_offset
    world.check()
    assert fsck(world.bucket, deep=True).is_clean
