"""Opening a log after a crash, and with files that are torn, lost or wrong."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, RequestError
from service.hot.log import LocalLog
from service.hot.recovery_walk import has_unwritten_page
from service.records.batch import stamp
from tests.unit.hot.logs import START_MS, batch, headers_from, open_log, raw, records_from

SETTINGS: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}


def filled(tmp_path: Path, count: int = 30, **options: Any) -> LocalLog:
    log = open_log(tmp_path, **{**SETTINGS, **options})
    for n in range(count):
        log.append(batch(2, timestamp=START_MS + n), n // 10, START_MS)
    return log


def index_files(log: LocalLog) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in log.dir.iterdir() if p.suffix in (".index", ".timeindex")}


def bases(log: LocalLog) -> list[int]:
    return [segment.base_offset for segment in log]


def test_a_log_that_was_simply_left_is_whole_again(tmp_path: Path) -> None:
    log = filled(tmp_path)
    again = open_log(tmp_path, **SETTINGS)
    assert (again.log_end_offset, again.size, bases(again)) == (60, log.size, bases(log))
    assert again.recovery_point == 0
    assert again.epochs.entries == ((0, 0), (1, 20), (2, 40))
    assert [r.offset for r in records_from(again)] == list(range(60))


def test_recovery_makes_the_indexes_that_appending_made(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    before = index_files(log)
    for path in log.dir.glob("*index"):
        path.unlink()
    again = open_log(tmp_path, **SETTINGS)
    again.close()
    assert index_files(again) == before


def test_a_clean_stop_is_believed_and_leaves_nothing_to_recover(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    before = index_files(log)
    again = open_log(tmp_path, clean=True, **SETTINGS)
    assert (again.log_end_offset, again.recovery_point) == (60, 60)
    assert again.append(batch(1), 2, START_MS).first_offset == 60
    again.close()
    after = index_files(again)
    sealed = {f"{base:020d}.index" for base in bases(log)[:-1]}
    assert {name: after[name] for name in sealed} == {name: before[name] for name in sealed}


@pytest.mark.parametrize("keep", [0, 1, 11, 12, 60, 61, 62, 100, 177, 178, 179, 300])
def test_a_torn_end_is_cut_to_the_last_whole_batch(tmp_path: Path, keep: int) -> None:
    log = filled(tmp_path)
    last = log.dir / f"{bases(log)[-1]:020d}.log"
    size = len(batch(2).data)
    os.truncate(last, keep)
    again = open_log(tmp_path, **SETTINGS)
    assert again.log_end_offset == bases(log)[-1] + 2 * (keep // size)
    assert os.path.getsize(last) == size * (keep // size)
    assert again.append(batch(1), 3, START_MS).first_offset == again.log_end_offset - 1
    assert [r.offset for r in records_from(again)] == list(range(again.log_end_offset))


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 500, b"\xff" * 500, Random(7).randbytes(300), b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\2" * 99],
    ids=["zeros", "ones", "random", "lengths"],
)
def test_garbage_behind_the_last_batch_is_cut(tmp_path: Path, tail: bytes) -> None:
    log = filled(tmp_path)
    with open(log.dir / f"{bases(log)[-1]:020d}.log", "ab") as file:
        file.write(tail)
    again = open_log(tmp_path, **SETTINGS)
    assert (again.log_end_offset, again.size) == (60, log.size)


def test_a_batch_that_repeats_old_offsets_is_cut(tmp_path: Path) -> None:
    """What a torn write leaves behind when a shorter one went over its beginning."""
    log = filled(tmp_path, 3)
    stale = batch(1)
    stamp(stale.data, 0, 4, 0)
    with open(log.dir / f"{0:020d}.log", "ab") as file:
        file.write(stale.data)
    assert open_log(tmp_path, **SETTINGS).log_end_offset == 6


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x20
    path.write_bytes(data)


def test_damage_in_front_of_sound_batches_is_no_torn_tail(tmp_path: Path) -> None:
    log = filled(tmp_path)
    size = len(batch(2).data)
    flip(log.dir / f"{bases(log)[2]:020d}.log", 2 * size + 100)
    before = contents(log.dir)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=rf"{bases(log)[2]:020d}.*wrong checksum.*sound batch"):
            open_log(tmp_path, **SETTINGS)
        assert contents(log.dir) == before, "L3: sound batches were cut"


def test_damage_at_a_segments_end_is_found_by_the_segments_behind_it(tmp_path: Path) -> None:
    log = filled(tmp_path)
    path = log.dir / f"{bases(log)[2]:020d}.log"
    flip(path, path.stat().st_size - 10)
    before = contents(log.dir)
    with pytest.raises(CorruptionError, match="sound batches follow in"):
        open_log(tmp_path, **SETTINGS)
    assert contents(log.dir) == before


def test_after_a_power_loss_a_log_ends_at_its_first_hole(tmp_path: Path) -> None:
    log = filled(tmp_path)
    first, size = bases(log)[2], len(batch(2).data)
    path = log.dir / f"{first:020d}.log"
    data = bytearray(path.read_bytes())
    data[2 * size : 3 * size] = bytes(size)
    path.write_bytes(data)
    before = contents(log.dir)
    for point in (first + 5, 60):
        with pytest.raises(CorruptionError):
            open_log(tmp_path, lost_power=True, recovery_point=point, **SETTINGS)
        assert contents(log.dir) == before
    again = open_log(tmp_path, lost_power=True, recovery_point=first + 4, **SETTINGS)
    assert (again.log_end_offset, bases(again)) == (first + 4, bases(log)[:3])
    assert again.append(batch(1), 9, START_MS).first_offset == first + 4
    assert [r.offset for r in records_from(again)] == list(range(first + 5))


def test_with_a_flush_for_each_batch_the_power_takes_pages_and_no_single_bytes(tmp_path: Path) -> None:
    log = filled(tmp_path)
    flip(log.dir / f"{bases(log)[2]:020d}.log", 100)
    before = contents(log.dir)
    with pytest.raises(CorruptionError, match="sound batch"):
        open_log(tmp_path, lost_power=True, flush_messages=1, **SETTINGS)
    assert contents(log.dir) == before


@pytest.mark.parametrize("is_last", [False, True])
def test_batches_that_came_during_one_flush_may_be_lost_in_any_order(tmp_path: Path, is_last: bool) -> None:
    """The loop goes on appending while a thread flushes, with ``flush.messages=1``, too."""
    log = filled(tmp_path)
    first = bases(log)[-1 if is_last else 2]
    path, size = log.dir / f"{first:020d}.log", len(batch(2).data)
    data = bytearray(path.read_bytes())
    data[size : 2 * size] = bytes(size)
    path.write_bytes(data)
    before = contents(log.dir)
    for known in ({"lost_power": False}, {"lost_power": True, "recovery_point": first + 3}):
        with pytest.raises(CorruptionError):
            open_log(tmp_path, flush_messages=1, **known, **SETTINGS)
        assert contents(log.dir) == before
    again = open_log(tmp_path, lost_power=True, flush_messages=1, recovery_point=first + 2, **SETTINGS)
    assert again.log_end_offset == first + 2


@pytest.mark.parametrize(
    ("zeros", "is_unwritten"),
    [
        ((100, 300), True),  # a small batch, from its beginning to the next sound one
        ((100, 290), False),
        ((4096, 8192), True),
        ((4096, 8191), False),
        ((4200, 8192), False),
        ((100, 4096), True),
        ((8192, 9000), False),  # the last bytes of a batch
    ],
)
def test_an_unwritten_page_is_zeros_from_its_border_on(zeros: tuple[int, int], is_unwritten: bool) -> None:
    end = 300 if zeros[1] <= 300 else 9000
    data = bytearray(b"x" * end)
    data[slice(*zeros)] = bytes(zeros[1] - zeros[0])
    assert has_unwritten_page(lambda size, at: bytes(data[at : at + size]), 100, end) is is_unwritten


def test_a_segments_end_that_the_power_took_ends_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path)
    first, following = bases(log)[2:4]
    path = log.dir / f"{first:020d}.log"
    os.truncate(path, path.stat().st_size - len(batch(2).data))
    before = contents(log.dir)
    for lost_power, point in ((False, 0), (True, following)):
        with pytest.raises(CorruptionError):
            open_log(tmp_path, lost_power=lost_power, recovery_point=point, **SETTINGS)
        assert contents(log.dir) == before
    again = open_log(tmp_path, lost_power=True, recovery_point=first, **SETTINGS)
    assert (again.log_end_offset, bases(again)) == (following - 2, bases(log)[:3])


@pytest.mark.parametrize("position", [3, 8, 11, 16, 18, 25, 60, 100, 170])
def test_damage_of_the_last_batch_counts_where_it_was_known_to_be_durable(
    tmp_path: Path, position: int
) -> None:
    log = filled(tmp_path)
    path = log.dir / f"{bases(log)[-1]:020d}.log"
    flip(path, path.stat().st_size - len(batch(2).data) + position)
    before = contents(log.dir)
    with pytest.raises(CorruptionError, match="on disk"):
        open_log(tmp_path, recovery_point=60, **SETTINGS)
    assert contents(log.dir) == before
    assert open_log(tmp_path, recovery_point=58, **SETTINGS).log_end_offset == 58


def test_a_log_that_lost_what_was_durable_is_damaged(tmp_path: Path) -> None:
    log = filled(tmp_path)
    path = log.dir / f"{bases(log)[-1]:020d}.log"
    os.truncate(path, path.stat().st_size - len(batch(2).data))
    with pytest.raises(CorruptionError, match="ends at 58, and everything below 60 was on disk"):
        open_log(tmp_path, recovery_point=60, **SETTINGS)
    for one in log.dir.glob("*.log"):
        one.unlink()
    with pytest.raises(CorruptionError, match="no segments"):
        open_log(tmp_path, recovery_point=60, **SETTINGS)


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_segment_is_damage(tmp_path: Path, clean: bool) -> None:
    log = filled(tmp_path)
    log.close()
    (log.dir / f"{bases(log)[2]:020d}.log").unlink()
    before = contents(log.dir)
    for point in (60, 0):
        with pytest.raises(CorruptionError, match="the segment before it ends at"):
            open_log(tmp_path, clean=clean, recovery_point=point, **SETTINGS)
        assert contents(log.dir) == before


def test_segments_below_the_log_start_may_be_missing(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    start = bases(log)[3]
    (log.dir / f"{bases(log)[1]:020d}.log").unlink()
    again = open_log(tmp_path, clean=True, recovery_point=60, log_start_offset=start, **SETTINGS)
    assert (again.log_start_offset, again.log_end_offset) == (start, 60)
    assert sorted(contents(log.dir)) == [f"{base:020d}.log" for base in bases(log)[3:]]


def test_the_empty_segment_of_a_failed_roll_is_dropped(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    stray = log.dir / f"{59:020d}.log"
    for clean in (True, False):
        stray.write_bytes(b"")
        again = open_log(tmp_path, clean=clean, recovery_point=60, **SETTINGS)
        assert again.log_end_offset == 60
        assert not stray.exists()
        again.close()


def test_damage_below_the_recovery_point_is_left_to_its_readers(tmp_path: Path) -> None:
    log = filled(tmp_path)
    with open(log.dir / f"{0:020d}.log", "r+b") as file:
        file.seek(170)
        file.write(b"\xa5")
    again = open_log(tmp_path, recovery_point=bases(log)[3], **SETTINGS)
    assert again.log_end_offset == 60
    assert len(list(headers_from(again, 0))) == 30


def test_a_segment_that_does_not_follow_on_is_damage(tmp_path: Path) -> None:
    log = filled(tmp_path)
    size = len(batch(2).data)
    os.truncate(log.dir / f"{bases(log)[2]:020d}.log", 2 * size)
    before = contents(log.dir)
    with pytest.raises(CorruptionError, match="the segment before it ends at"):
        open_log(tmp_path, **SETTINGS)
    assert contents(log.dir) == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "zeros", "ones", "swapped", "preallocated"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_wrong_indexes_are_rebuilt_at_recovery(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    log = filled(tmp_path)
    log.close()
    paths = sorted(log.dir.glob("*" + suffix))
    contents = [p.read_bytes() for p in paths]
    for path, data, other in zip(paths, contents, reversed(contents), strict=True):
        if damage == "missing":
            path.unlink()
            continue
        path.write_bytes(
            {
                "empty": b"",
                "cut": data[:-3],
                "zeros": bytes(len(data)),
                "ones": b"\x7f" * len(data),
                "swapped": other[::-1],
                "preallocated": data + bytes(4080),
            }[damage]
        )
    again = open_log(tmp_path, clean=clean, recovery_point=60 if clean else 25, **SETTINGS)
    assert again.log_end_offset == 60
    for offset in (0, 7, 31, 59):
        assert again.read(offset, 1000).start_offset == offset - offset % 2
    assert again.offset_for_timestamp(START_MS + 17, 0) == (33, START_MS + 17, 1)
    assert again.max_timestamp_offset() == (59, START_MS + 30, 2)


@pytest.mark.parametrize("cut", [1, 2, 20, 33, 34, 35, 36, 37])
def test_an_epoch_checkpoint_with_a_torn_number_is_rebuilt(tmp_path: Path, cut: int) -> None:
    log = filled(tmp_path)
    path = log.dir / "leader-epoch-checkpoint"
    assert path.read_bytes().rstrip().endswith(b"2 40")
    path.write_bytes(path.read_bytes()[:-cut])  # "2 4" would be another offset
    again = open_log(tmp_path, recovery_point=50, **SETTINGS)
    assert again.epochs.entries == ((0, 0), (1, 20), (2, 40))


def test_a_lost_epoch_file_is_learnt_from_the_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    (log.dir / "leader-epoch-checkpoint").write_bytes(b"")
    assert open_log(tmp_path, clean=True, **SETTINGS).epochs.entries == ((0, 0), (1, 20), (2, 40))


def test_epochs_below_a_start_that_no_crash_remembers_are_there_again(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.deletion.advance_log_start(45)
    assert log.epochs.entries == ((2, 45),)
    again = open_log(tmp_path, recovery_point=60, **SETTINGS)
    assert again.epochs.entries == ((0, 0), (1, 20), (2, 40))
    assert open_log(tmp_path, log_start_offset=45, **SETTINGS).epochs.entries == ((2, 45),)


def test_epochs_that_were_written_without_the_first_ones_are_learnt_from_the_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.deletion.advance_log_start(45)
    log.epochs.assign(7, 60)
    again = open_log(tmp_path, recovery_point=60, **SETTINGS)
    assert again.epochs.entries == ((0, 0), (1, 20), (2, 40))


def test_epochs_beyond_the_end_are_forgotten(tmp_path: Path) -> None:
    log = filled(tmp_path)
    (log.dir / "leader-epoch-checkpoint").write_text("0\n4\n0 0\n1 20\n2 40\n9 61\n")
    assert open_log(tmp_path, **SETTINGS).epochs.entries == ((0, 0), (1, 20), (2, 40))


def test_a_torn_log_with_a_clean_mark_is_damaged(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = log.dir / f"{bases(log)[-1]:020d}.log"
    os.truncate(path, os.path.getsize(path) - 5)
    with pytest.raises(CorruptionError, match="is cut at"):
        open_log(tmp_path, clean=True, **SETTINGS)


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.close()
    for name in ("00000000000000000000.log.deleted", "x.tmp", "00000000000000000099.index"):
        (log.dir / name).write_bytes(b"x")
    open_log(tmp_path, clean=True, **SETTINGS).close()
    assert sorted(p.name for p in log.dir.iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
    ]


def test_a_log_that_ends_before_its_start_restarts_there(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    again = open_log(tmp_path, log_start_offset=100, **SETTINGS)
    assert (again.log_start_offset, again.log_end_offset, again.size) == (100, 100, 0)
    assert again.append(batch(1), 1, START_MS).first_offset == 100


def test_the_start_offset_survives(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.deletion.advance_log_start(25)
    log.close()
    again = open_log(tmp_path, clean=True, log_start_offset=25, **SETTINGS)
    assert (again.log_start_offset, again.local_log_start_offset) == (25, 25)
    with pytest.raises(RequestError):
        again.read(24, 100)


def test_with_remote_storage_the_log_begins_where_the_checkpoint_says(tmp_path: Path) -> None:
    log = filled(tmp_path, remote_storage_enable=True)
    log.deletion.advance_local_start(30)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 30)
    log.close()
    again = open_log(tmp_path, clean=True, log_start_offset=4, remote_storage_enable=True, **SETTINGS)
    assert again.log_start_offset == 4
    assert bases(again)[0] <= again.local_log_start_offset <= 30


def test_flush_moves_the_recovery_point(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.durability.flush(25) == 25
    assert log.recovery_point == 25
    assert log.durability.flush() == 60
    log.truncation.truncate_to(30)
    assert log.recovery_point == 30


def test_a_gap_in_raw_offsets_survives_a_crash_within_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy="compact")
    log.appender.append_raw(raw((0, 2, 1), (10, 2, 1)))
    again = open_log(tmp_path, cleanup_policy="compact")
    assert again.log_end_offset == 12
    assert again.read(5, 1000).start_offset == 10


def test_greatest_timestamp_of_the_open_segment_is_right_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=10_000)
    log.append(batch(timestamp=START_MS + 99), 0, START_MS)
    log.append(batch(timestamp=START_MS), 0, START_MS)
    again = open_log(tmp_path, ManualClock(START_MS))
    assert again.max_timestamp_offset() == (0, START_MS + 99, 0)
    again.append(batch(timestamp=START_MS + 5), 0, START_MS)
    again.appender.roll()
    assert again.max_timestamp_offset() == (0, START_MS + 99, 0)
