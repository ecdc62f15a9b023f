"""Files of a log for a thread that saves its records, and how soon the active segment is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.records.batch import read_header
from tests.unit.hot.logs import START_MS, batch, open_log


def test_every_offset_is_found_where_its_batch_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000, index_interval_bytes=100)
    for count in (1, 3, 2) * 15:
        log.append(batch(count), 0, START_MS)
    end = log.log_end_offset
    for offset in range(end):
        run = log.runs.runs_from(offset)[0]
        header = read_header(run.file.pread(61, run.position_of(offset)))
        assert header.base_offset <= offset < header.next_offset
    assert len(log.runs.runs_from(0)) == len(log.state.segments)
    (last,) = log.runs.runs_from(end)
    assert last.position_of(end) == last.size


@pytest.mark.parametrize("entry", [b"\0\0\0\5\0\0\0\7", b"\0\0\0\1\0\0\xff\xff", b"\xff" * 8, b""])
def test_a_wrong_index_costs_a_walk_and_no_record(tmp_path: Path, entry: bytes) -> None:
    log = open_log(tmp_path, index_interval_bytes=100)
    for _ in range(20):
        log.append(batch(2), 0, START_MS)
    (run,) = log.runs.runs_from(0)
    right = [run.position_of(offset) for offset in range(40)]
    index = log.state.segments.active.indexes.offset
    path = index.handle.path
    data = path.read_bytes()
    path.write_bytes(entry * (len(data) // 8) if entry else b"")
    run.offsets.handle.peek().kept = None
    assert [run.position_of(offset) for offset in range(40)] == right


def test_a_log_tells_how_much_its_active_segment_still_takes(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=1 << 20, segment_ms=60_000)
    assert log.runs.left_bytes == 1 << 20
    assert log.runs.left_ms(START_MS + 20_000) == 40_000
    one = batch(2, timestamp=START_MS - 900_000)
    log.append(one, 0, START_MS)
    assert log.runs.left_bytes == (1 << 20) - len(one.data)
    # Records of long ago: the segment is not sealed before their own time has passed.
    assert log.runs.left_ms(START_MS + 50_000) == 60_000
    log.append(batch(1, timestamp=START_MS - 895_000), 0, START_MS)
    assert log.runs.left_ms(START_MS + 50_000) == 55_001


def test_bytes_behind_an_offset_and_all_that_were_written_are_counted(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000)
    size = 0
    for _ in range(40):
        one = batch(1)
        size += len(one.data)
        log.append(one, 0, START_MS)
    width = size // 40
    for offset in (0, 1, 17, 39, 40):
        assert abs(log.runs.bytes_from(offset) - (40 - offset) * width) < width
    assert log.runs.bytes_written == size
    log.deletion.move_log_start(30)
    log.deletion.delete_below_start()
    assert log.size < size
    assert log.runs.bytes_written == size
