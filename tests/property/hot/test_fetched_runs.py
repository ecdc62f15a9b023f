"""Batches that are appended at once leave what appending one by one does: files, offsets and producers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.hot.log import LocalLog
from service.records.batch import stamp
from service.records.scan import scan_batches
from tests.unit.hot.logs import START_MS, batch, open_log

CASES = 60


def batches(chance: random.Random, count: int) -> list[bytes]:
    """With rising offsets, of one epoch mostly, of some producers."""
    offset, epoch, timestamp = 0, 1, START_MS
    sequences: dict[int, int] = {}
    made = []
    gaps, is_steady = chance.random() < 0.2, chance.random() < 0.7
    for _ in range(count):
        size = chance.choice((1, 1, 2, 7, 40))
        producer = chance.choice((-1, -1, 3, 4, 5))
        sequence = sequences.get(producer, 0) if producer >= 0 else -1
        sequences[producer] = sequence + size
        timestamp += chance.choice((0, 1, 50, -30))
        one = batch(
            size,
            timestamp=timestamp,
            value=b"v" * chance.choice((1, 30, 300)),
            producer_id=producer,
            epoch=0 if producer >= 0 else -1,
            sequence=sequence,
        ).data
        if not is_steady and chance.random() < 0.05:
            epoch += chance.randrange(1, 3)
        if gaps and chance.random() < 0.1:
            offset += chance.randrange(1, 9)
        stamp(one, 0, offset, epoch)
        offset += size
        made.append(bytes(one))
    return made


def two_logs(directory: Path, options: dict[str, Any]) -> list[LocalLog]:
    return [open_log(directory / name, ManualClock(START_MS), **options) for name in ("one", "other")]


def left_by(log: LocalLog) -> object:
    producers = {
        pid: (entry.epoch, entry.last_timestamp, entry.batches, entry.txn_first_offset)
        for pid, entry in log.producers
    }
    state = log.state
    offsets = (log.log_end_offset, log.size, state.gaps_below, log.producers.end_offset)
    files = {path.name: path.read_bytes() for path in log.dir.iterdir()}
    return offsets, log.epochs.entries, producers, sorted(files.items())


@pytest.mark.parametrize("first", range(0, CASES, 20))
def test_a_run_leaves_what_its_batches_do(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        chance = random.Random(seed)
        options: dict[str, Any] = {
            "segment_bytes": chance.choice((2_000, 30_000, 1 << 30)),
            "index_interval_bytes": chance.choice((0, 300, 4096)),
            "segment_ms": chance.choice((100, 1 << 40)),
            "segment_index_bytes": chance.choice((120, 10 << 20)),
            "cleanup_policy": chance.choice(("delete", "compact")),
        }
        one, other = two_logs(tmp_path / f"{seed}", options)
        made = batches(chance, chance.randrange(2, 150))
        while made:
            count = chance.choice((1, 2, 5, 30, 100))
            data = b"".join(made[:count])
            del made[:count]
            one.appender.append_raw(memoryview(data))
            padded = memoryview(bytes(7) + data)
            other.appender.append_fetched(padded, scan_batches(padded, 7))
            if chance.random() < 0.1:
                end = chance.randrange(max(one.log_end_offset - 30, 0), one.log_end_offset + 1)
                assert one.truncation.end_after(end) == other.truncation.end_after(end)
                if one.truncation.end_after(end) == one.log_end_offset:
                    continue
                assert one.truncation.truncate_to(end) == other.truncation.truncate_to(end)
                break
        assert left_by(one) == left_by(other), f"seed {seed}: {options}"


@pytest.mark.parametrize("first", range(0, CASES, 20))
def test_a_run_that_a_thread_writes_leaves_what_its_batches_do(first: int, tmp_path: Path) -> None:
    """Whatever of it a thread has got done when somebody changes the log."""
    for seed in range(first, first + 20):
        chance = random.Random(seed)
        options: dict[str, Any] = {
            "segment_bytes": chance.choice((30_000, 1 << 30)),
            "index_interval_bytes": chance.choice((0, 300, 4096)),
            "segment_index_bytes": chance.choice((120, 10 << 20)),
        }
        one, other = two_logs(tmp_path / f"{seed}", options)
        made = batches(chance, chance.randrange(20, 150))
        while made:
            count = chance.choice((1, 2, 5, 30, 100))
            data = memoryview(b"".join(made[:count]))
            run, end = scan_batches(data), other.log_end_offset
            ahead = other.appender.begin(data, run)
            if ahead is None:
                other.appender.append_fetched(data, run)
            else:
                is_written = chance.random() < 0.7
                if is_written:
                    ahead.write()
                    assert (other.log_end_offset, other.read(end, 1 << 30).slice) == (end, None)
                change(chance, one if not is_written else None, other)
                ahead.write()  # a thread that comes too late
                assert ahead.is_appended is is_written
                if not is_written:
                    continue
            one.appender.append_raw(data)
            del made[:count]
        assert content(one) == content(other), f"seed {seed}: {options}"
        one.close()
        other.close()
        again = [
            open_log(
                log.dir.parent,
                ManualClock(START_MS),
                clean=True,
                recovery_point=log.log_end_offset,
                **options,
            )
            for log in (one, other)
        ]
        assert content(again[0]) == content(again[1]), f"seed {seed}, opened again: {options}"


def change(chance: random.Random, one: LocalLog | None, other: LocalLog) -> None:
    """Do something to the log while a run is on its way to it, and to `one` where nothing comes of that."""
    match chance.randrange(4):
        case 0:
            other.appender.finish()
        case 1:
            assert other.truncation.truncate_to(1 << 40) == other.log_end_offset
        case 2:
            other.appender.note_leader_epoch(0)
        case _:
            other.appender.roll()
            if one is not None:
                one.appender.roll()


def content(log: LocalLog) -> tuple[object, bytes]:
    """What it holds, however it is cut into segments."""
    producers = {pid: (entry.epoch, entry.last_timestamp, entry.batches) for pid, entry in log.producers}
    data = b"".join((log.dir / f"{one.base_offset:020}.log").read_bytes() for one in log)
    return (log.log_end_offset, log.size, log.epochs.entries, producers, log.producers.end_offset), data
