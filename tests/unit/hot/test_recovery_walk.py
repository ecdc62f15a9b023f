"""The kernel's walk of recovery finds what a walk batch by batch finds: end, indexes, epochs, producers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.hot import recovery_walk
from service.hot.producers import ProducerStates
from service.hot.recovery import replay_batch
from service.hot.recovery_walk import Problem, Run, recover_segment
from service.hot.segment import Segment
from service.records.walk import iter_batches
from tests.support.world import START_MS
from tests.unit.hot.logs import batch, open_log

HOUR_MS = 3_600_000


def state_of(states: ProducerStates) -> dict[int, tuple[object, ...]]:
    return {pid: (entry.epoch, entry.last_timestamp, entry.batches) for pid, entry in states}


def fill(directory: Path, source: random.Random, count: int) -> Segment:
    """A segment of batches of a few producers, in a few epochs, some of them large, in no order of time."""
    log = open_log(directory, index_interval_bytes=500, max_message_bytes=1 << 22)
    sequences = dict.fromkeys(range(7), 0)
    epochs = dict.fromkeys(sequences, 0)
    for n in range(count):
        producer = source.choice([-1, *sequences])
        size = source.choice([1, 1, 1, 2, 5])
        value = bytes(source.choice([10, 10, 10, 3000]))
        if source.random() < 0.02:
            value = bytes(9000)
        timestamp = START_MS + source.randrange(1000) if source.random() < 0.9 else -1
        if producer < 0:
            one = batch(size, timestamp=timestamp, value=value)
        else:
            if source.random() < 0.02:
                epochs[producer] += 1
                sequences[producer] = 0
            one = batch(
                size,
                timestamp=timestamp,
                value=value,
                producer_id=producer * 7,
                epoch=epochs[producer],
                sequence=sequences[producer],
            )
            sequences[producer] += size
        log.append(one, n * 5 // count, START_MS)
    log.close(clean=False)
    segment = next(iter(open_log(directory, index_interval_bytes=500)))
    assert segment.base_offset == 0
    return segment


@pytest.mark.parametrize("piece_bytes", [1 << 20, 7000])
def test_both_walks_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(recovery_walk, "_PIECE_BYTES", piece_bytes)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    segment = fill(tmp_path, source, 600)
    headers = list(iter_batches(segment.log.get().pread, 0, segment.size))
    expected, found = ProducerStates(HOUR_MS), ProducerStates(HOUR_MS)
    read = segment.log.get().pread
    for header in headers:
        replay_batch(expected, read, header, START_MS)
    segment.indexes.rebuild()
    segment.indexes.finish()
    indexes = [handle.path.read_bytes() for handle in segment.handles[1:]]
    largest = segment.max_timestamp, segment.max_timestamp_offset
    runs: list[Run] = []

    def take_over(_: object, run: Run) -> None:
        runs.append(run)
        for header in run.producers():
            replay_batch(found, read, header, START_MS)

    assert recover_segment(segment, take_over) == (headers[-1].next_offset, None)
    assert state_of(found) == state_of(expected)
    assert [handle.path.read_bytes() for handle in segment.handles[1:]] == indexes
    assert (segment.max_timestamp, segment.max_timestamp_offset) == largest
    offsets = [offset for run in runs for offset in run.batches.base_offsets]
    assert offsets == [header.base_offset for header in headers]
    assert [epoch for run in runs for epoch in run.batches.leader_epochs] == [
        header.partition_leader_epoch for header in headers
    ]
    assert (len(runs) == 1) == (piece_bytes > segment.size or len(headers) == 1)


@pytest.mark.parametrize("piece_bytes", [1 << 20, 3000])
def test_the_first_batch_that_is_not_sound_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(recovery_walk, "_PIECE_BYTES", piece_bytes)
    source = random.Random(7)
    segment = fill(tmp_path, source, 60)
    headers = list(iter_batches(segment.log.get().pread, 0, segment.size))
    path = segment.log.path
    data = path.read_bytes()
    for number in range(0, 60, 7):
        header = headers[number]
        at = source.randrange(header.position + 17, header.end)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        end, problem = recover_segment(segment, lambda *_: None)
        assert end == header.base_offset
        assert isinstance(problem, Problem)
        assert problem.position == header.position
        assert str(header.position) in problem.why
        segment.size = source.randrange(header.position + 1, header.end)
        path.write_bytes(data)
        assert recover_segment(segment, lambda *_: None)[0] == header.base_offset
        segment.size = len(data)


def test_a_file_that_is_shorter_than_it_was_ends_it_too(tmp_path: Path) -> None:
    segment = fill(tmp_path, random.Random(7), 20)
    end = list(iter_batches(segment.log.get().pread, 0, segment.size))[-1].next_offset
    segment.size += 100
    found, problem = recover_segment(segment, lambda *_: None)
    assert (found, problem is not None) == (end, True)
