"""Golden cuts: what we would write today over the golden bucket, and what of them every reader makes."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.inspect.fsck import fsck
from service.records.decode import iter_records
from service.remote.format.cut_codec import decode_cut, decode_cuts
from service.remote.format.keys import HeadKey, TailKey, parse_key
from service.remote.format.tail_object import decode_footer
from service.remote.reading.object_reader import open_footer, open_published
from service.remote.reading.reader import RemoteReader
from service.remote.reading.tail_records import read_pieces
from service.remote.reading.tails import index_tails, open_cuts, open_named_cut
from service.remote.stores.memory_store import MemoryStore
from tests.golden.remote.generate import (
    CUTS,
    FOLDERS,
    GROUPS,
    HISTORY,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    content,
    cut_content,
    readable,
)
from tests.support.world import WORLD

REFERENCE = Path(__file__).parents[3] / "docs" / "reference_reader.py"
BEFORE = Path(__file__).parent / "reader_before_cuts.txt"
"""The reference reader of before there were cuts: stays as it is."""


def stored(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(SystemThreads())
    for key, data in {**stored(FOLDERS[2]), **stored(CUTS)}.items():
        made.put(key, data)
    return made


def test_we_write_the_same_cuts_under_the_same_names() -> None:
    assert sorted(cut_content()) == sorted(stored(CUTS))


@pytest.mark.parametrize("key", sorted(cut_content()))
def test_we_write_the_same_bytes(key: str) -> None:
    assert comparable(key, cut_content()[key]) == comparable(key, stored(CUTS)[key])


def comparable(key: str, data: bytes) -> object:
    """As `readable`, and the footer of a tail, whose gzip may vary."""
    if key == "CUT":
        document = json.loads(data)
        for row in (document, *document["kept"]):
            for name in ("stored_size", "crc32c", "document_crc32c"):
                row.pop(name, None)
        return document
    if key.endswith(".tail"):
        footer = decode_footer(data, len(data))
        return data[: footer.position], gzip.decompress(data[footer.position : -16])
    if key.startswith("cut/"):
        document = json.loads(gzip.decompress(data))
        document["tails"] = [row[0] for row in document["tails"]]
        return document
    return readable(key, data)


def test_the_golden_cuts_say_what_they_are(store: MemoryStore) -> None:
    cuts = open_cuts(store)
    assert [(ref.cut, ref.is_exact, ref.is_complete) for ref in cuts.kept] == [
        (1, False, True),
        (2, True, True),
    ]
    assert (cuts.newest.at_ms, cuts.newest.key) == (
        1_700_000_130_000,
        "cut/00000000000000000002-00000000-0000-0000-0000-0000000001f6.json.gz",
    )
    cut = open_named_cut(store, cuts.newest)
    assert (cut.metadata.end_offset, cut.metadata_end, cut.metadata_epoch) == (64, 67, 3)
    assert [parse_key(ref.key)[:3] for ref in cut.tails] == [(1, 1, 1), (2, 0, 1)]  # type: ignore[index]
    assert cut.topics[GROUPS][0]._asdict() == {
        "leader_epoch": 0, "start": 0, "end": 6, "stable": 6, "saved": 6, "saved_high": 6, "last_epoch": 0,
        "version": 0, "waits": False,
    }  # fmt: skip
    assert cut.topics[TOPIC_ID][PARTITION].end == 105


def test_fsck_finds_the_golden_cuts_whole(store: MemoryStore) -> None:
    report = fsck(store)
    assert [
        error for error in report.errors if error.where.startswith(("CUT", "cut/", "tail/", "data/"))
    ] == []
    assert report.cuts is not None
    assert (report.cuts.kept, report.cuts.tails) == (2, 2)


def test_records_behind_the_chain_are_the_ones_that_were_saved(store: MemoryStore) -> None:
    """A leader of epoch 3 began anew at 99, over what the one of epoch 2 had saved up to 102."""
    cut = open_named_cut(store, open_cuts(store).newest)
    found = index_tails(store, cut.tails).pieces((TOPIC_ID, PARTITION), 90, 105, last_epoch=2)
    assert [(piece.first, piece.end, piece.span.level) for piece in found.pieces] == [
        (90, 99, 1),
        (99, 105, 0),
    ]
    records = [
        (one.offset, bytes(one.value or b""))
        for run in read_pieces(store, found.pieces, last_epoch=2)
        for one in iter_records(run.data)
    ]
    assert records == [(offset, b"value-%d" % offset) for offset in range(90, 105)]


def read(script: Path, folder: Path, *arguments: object) -> list[dict[str, Any]]:
    command = [sys.executable, "-I", "-S", str(script), str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_reader_of_before_passes_over_cuts_and_histories(tmp_path: Path) -> None:
    for key, data in {**stored(FOLDERS[2]), **stored(CUTS)}.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    before = read(BEFORE, tmp_path, TOPIC, PARTITION)
    assert [one["offset"] for one in before] == list(range(90))
    assert read(REFERENCE, tmp_path, TOPIC, PARTITION) == before
    behind = read(REFERENCE, tmp_path, TOPIC, PARTITION, "--tail", "--committed")
    assert behind[:90] == before
    assert [(one["offset"], one["value"]) for one in behind[90:]] == [
        (n, f"value-{n}") for n in range(90, 105)
    ]


def test_the_golden_segment_tells_the_epochs_of_its_whole_log(store: MemoryStore) -> None:
    chain = open_published(store, HeadKey(TOPIC_ID, PARTITION))
    assert chain is not None
    footer = open_footer(store, chain.manifest.entries[-1].key)
    assert list(footer.sections) == [
        "offset_index", "time_index", "txn_index", "producer_snapshot", "leader_epochs", "block_table",
        "epoch_history",
    ]  # fmt: skip
    reader = RemoteReader(store, WORLD, threads=1)
    try:
        tip = TopicIdPartition(TOPIC_ID, TOPIC, PARTITION)
        assert reader.archive_end(tip, chain.key).result(20).epochs == HISTORY
    finally:
        reader.close()


DECODERS: dict[str, Callable[[bytes], object]] = {
    "CUT": decode_cuts,
    "cut/": decode_cut,
    "tail/": lambda data: decode_footer(data, len(data)),
}


@pytest.mark.parametrize("prefix", DECODERS)
def test_no_damage_of_a_golden_document_is_believed(prefix: str) -> None:
    """Flipped bits, lost and added bytes: an error in words, or what was there."""
    decode = DECODERS[prefix]
    source = random.Random(3)
    for key, data in stored(CUTS).items():
        if not key.startswith(prefix):
            continue
        right, begin = decode(data), 0
        if isinstance(parse_key(key), TailKey):
            begin = decode_footer(data, len(data)).position  # the records have checksums of their own
        for _ in range(300):
            damaged = bytearray(data)
            at = source.randrange(begin, len(data))
            kind = source.randrange(3)
            if kind == 0:
                damaged[at] ^= 1 << source.randrange(8)
            elif kind == 1:
                del damaged[at : at + source.randrange(1, 9)]
            else:
                damaged[at:at] = source.randbytes(source.randrange(1, 9))
            if damaged != data:
                assert outcome(decode, bytes(damaged)) in (None, right), (key, kind, at)
        assert content().keys().isdisjoint({key})


def outcome(decode: Callable[[bytes], object], data: bytes) -> object:
    """What is decoded, None for an error in words."""
    try:
        return decode(data)
    except CorruptionError:
        return None
