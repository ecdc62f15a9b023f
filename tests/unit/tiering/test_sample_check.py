"""Leaders read a sample of what workers in other processes have made, before they publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.records.batch import read_header
from service.records.compaction import sealed_batch
from service.records.scan import BatchScan
from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.key_filter import KeyFilterBuilder
from service.remote.reading.log_scan import LogScanner, ScannedLog
from service.remote.reading.object_reader import open_footer
from service.tiering.rewriting.report_check import RewriteReport
from service.tiering.rewriting.rules import MergeRule
from service.tiering.rewriting.sample_check import MOST_BLOCK_BYTES, SAMPLED_BLOCKS, sample_of
from tests.unit.tiering.merges import MergingWorld, OutsideWorker

MIB = 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> MergingWorld:
    world = MergingWorld(tmp_path)
    world.fill(10)
    world.settle()
    return world


def made(world: MergingWorld) -> tuple[OutsideWorker, RewriteReport]:
    worker = OutsideWorker(world, world.replicas[0])
    run = world.run_of(worker.replica)
    worker.begin(run)
    return worker, worker.make(run)


def refused(worker: OutsideWorker, report: RewriteReport, why: str) -> None:
    with pytest.raises(RequestError, match=why) as error:
        worker.commit(report)
    assert error.value.code == ErrorCode.invalid_request
    assert worker.world.generations(worker.replica) == [0] * 10


def altered(world: MergingWorld, key: str, *positions: int) -> None:
    """Some bytes of an object are others."""
    data = bytearray(world.bucket.get(key, max_size=MIB))
    for position in positions:
        data[position] ^= 1
    world.bucket.put(key, bytes(data))


def test_a_sound_object_is_published(world: MergingWorld) -> None:
    worker, report = made(world)
    worker.commit(report)
    assert world.generations(worker.replica) == [1]
    world.check()


@pytest.mark.parametrize("section", ["log", "offset_index", "key_filter", "leader_epochs"])
def test_bytes_that_differ_from_their_checksum_are_refused(world: MergingWorld, section: str) -> None:
    worker, report = made(world)
    (entry,) = report.entries
    footer = open_footer(world.bucket, entry.key)
    places = [block.position + 70 for block in footer.blocks]
    altered(world, entry.key, *(places if section == "log" else [footer.sections[section].position]))
    refused(worker, report, "wrong checksum")


def test_a_filter_that_lacks_a_key_is_refused(world: MergingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is right, but it would hide records from an erasure."""
    whole = KeyFilterBuilder.finish

    def lacking(self: KeyFilterBuilder) -> bytes:
        found = bytearray(whole(self))
        at = next(index for index, byte in enumerate(found) if byte)
        found[at] &= found[at] - 1
        return bytes(found)

    monkeypatch.setattr(KeyFilterBuilder, "finish", lacking)
    worker, report = made(world)
    refused(worker, report, "lacks 1 bits")


def test_a_count_of_keys_below_those_of_the_sample_is_refused(
    world: MergingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyFilterBuilder, "keyed_record_count", property(lambda self: 1))
    worker, report = made(world)
    monkeypatch.undo()
    refused(worker, report, "records have a key in a part, the footer says 1 of all")


def test_a_block_whose_row_is_wrong_is_refused(world: MergingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LogScanner.finish

    def wrong(self: LogScanner) -> ScannedLog:
        found = whole(self)
        found.blocks = tuple(block._replace(min_timestamp=block.min_timestamp - 1) for block in found.blocks)
        return found

    monkeypatch.setattr(LogScanner, "finish", wrong)
    worker, report = made(world)
    monkeypatch.undo()
    refused(worker, report, "the table says")


def test_a_merge_that_changes_a_value_is_refused(
    world: MergingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything about the object is consistent; a record is not the one that was there."""

    class Changing:
        def copy(self, piece: memoryview, batches: BatchScan) -> Any:
            for position, size in zip(batches.positions, batches.sizes, strict=True):
                batch = bytearray(piece[position : position + size])
                batch[-2] ^= 1  # the last byte of a value
                header = read_header(batch)
                yield memoryview(bytes(sealed_batch(header, batch[61:])))

        def rest(self) -> Any:
            return iter(())

    monkeypatch.setattr(MergeRule, "copier", lambda self, run: Changing())
    worker, report = made(world)
    refused(worker, report, r"the merged block at \d+ differs from")


def test_the_nodes_own_worker_is_not_sampled(world: MergingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It verifies what has arrived, and reads it once."""
    read: list[str] = []
    whole = world.bucket.get_range

    def noting(key: str, *arguments: Any) -> Any:
        read.append(key)
        return whole(key, *arguments)

    monkeypatch.setattr(world.bucket, "get_range", noting)
    before = set(world.stored_keys())
    assert world.merge()
    assert world.generations(world.replicas[0]) == [1]
    assert not [key for key in read if key not in before and "/segment" in key]


def table(*sizes: int) -> BlockTable:
    position, rows = 0, []
    for number, size in enumerate(sizes):
        rows.append(LogBlock(position, size, 0, number, number, 0, 0, 1, 1))
        position += size
    return BlockTable.of(rows)


@pytest.mark.parametrize("number", [0, 1, 12345678901234567890, UUID(int=7, version=4).int])
def test_a_sample_has_different_blocks_and_none_that_is_too_large(number: int) -> None:
    found = sample_of(table(*[MIB] * 50, MOST_BLOCK_BYTES + 1, *[MIB] * 50), number)
    assert len(found) == len(set(found)) == SAMPLED_BLOCKS
    assert {block.length for block in found} == {MIB}


def test_each_block_comes_into_a_sample() -> None:
    seen = {block.first_offset for number in range(64) for block in sample_of(table(*[MIB] * 4), number)}
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("count", [1, 2, SAMPLED_BLOCKS])
def test_a_small_object_is_read_as_a_whole(count: int) -> None:
    blocks = table(*[100] * count)
    assert sample_of(blocks, 5) == list(blocks)
