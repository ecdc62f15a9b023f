"""Cuts and tails are read from the bucket as they were written, and what is damaged is named."""

from __future__ import annotations

import random
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.records.decode import iter_records
from service.remote.format.coverage import Coverage, Piece, Span
from service.remote.format.cut_codec import CutRef, TailRef
from service.remote.reading import tail_records
from service.remote.reading.tail_records import read_pieces, read_section
from service.remote.reading.tails import (
    find_tail,
    index_tails,
    newest_readable,
    open_cuts,
    open_named_cut,
    open_tail,
)
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.memory_store import MemoryStore
from tests.support.built_batches import build_batch
from tests.support.cut_archives import AT_MS, CutWriter, Saved, row

EVENTS, OTHER = UUID(int=7), UUID(int=8)
OWN = frozenset(("c-1",))


def batch(base: int, count: int = 10, epoch: int = 0, value_bytes: int = 50) -> bytes:
    rows = [(AT_MS + base + i, b"k", b"%0*d" % (value_bytes, base + i)) for i in range(count)]
    return bytes(build_batch(rows, base_offset=base, leader_epoch=epoch))


def batches(first: int, end: int, epoch: int = 0) -> bytes:
    return b"".join(batch(base, 10, epoch) for base in range(first, end, 10))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemThreads())


@pytest.fixture
def writer(store: MemoryStore) -> CutWriter:
    return CutWriter(store)


def offsets(store: MemoryStore, found: Coverage, **changes: Any) -> list[int]:
    runs = list(read_pieces(store, found.pieces, **changes))
    return [one.offset for run in runs for one in iter_records(run.data)]


def test_a_cut_is_found_from_the_bucket_alone(store: MemoryStore, writer: CutWriter) -> None:
    with pytest.raises(ObjectNotFound):
        open_cuts(store)
    tail = writer.tail([Saved(EVENTS, 0, batches(20, 50)), Saved(OTHER, 2, batch(0))])
    cut = writer.cut({EVENTS: [row(50)], OTHER: [row(0), row(0), row(10)]}, [tail])
    cuts = open_cuts(store, OWN)
    assert [ref.cut for ref in cuts.kept] == [1]
    found = open_named_cut(store, cuts.newest, OWN)
    assert found == cut
    footer = open_tail(store, found.tails[0], OWN)
    assert [one[:2] + one[3:5] for one in footer.sections] == [(EVENTS, 0, 20, 50), (OTHER, 2, 0, 10)]
    assert find_tail(store, tail.key, OWN) == (tail, footer)


def test_records_of_a_partition_come_from_several_tails_in_order(
    store: MemoryStore, writer: CutWriter
) -> None:
    refs = [
        writer.tail([Saved(EVENTS, 0, batches(0, 40)), Saved(OTHER, 0, batch(0))], level=1),
        writer.tail([Saved(EVENTS, 0, batches(20, 40)), Saved(EVENTS, 1, batch(0))], cut=2),
        writer.tail([Saved(EVENTS, 0, batches(40, 70, epoch=2), leader_epoch=2)], cut=3),
    ]
    with ThreadPoolExecutor(2) as pool:
        index = index_tails(store, refs, owners=OWN, pool=pool)
    assert index.places() == ((EVENTS, 0), (EVENTS, 1), (OTHER, 0))
    found = index.pieces((EVENTS, 0), 10, 60)
    assert [(one.first, one.end) for one in found.pieces] == [(10, 20), (20, 40), (40, 60)]
    assert offsets(store, found) == list(range(10, 60))
    assert index.pieces((EVENTS, 0), 10, 90).reaches == 70
    assert index.pieces((UUID(int=99), 0), 10, 90) == Coverage((), 10)


def test_an_index_holds_what_is_asked_for_alone(store: MemoryStore, writer: CutWriter) -> None:
    refs = [
        writer.tail([Saved(EVENTS, 0, batches(0, 40)), Saved(EVENTS, 1, batch(0)), Saved(OTHER, 0, batch(0))])
    ]
    limits = {(EVENTS, 0): (39, 45), (EVENTS, 1): (10, 20), (OTHER, 1): (0, 9)}
    assert index_tails(store, refs, limits=limits).places() == ((EVENTS, 0),)


def test_records_that_an_earlier_leader_saved_are_not_read_behind_a_later_ones_chain(
    store: MemoryStore, writer: CutWriter
) -> None:
    """The chain ends at 20 with records of epoch 3; the tail is of before that unclean election."""
    refs = [writer.tail([Saved(EVENTS, 0, batches(0, 40, epoch=2), leader_epoch=2)])]
    index = index_tails(store, refs)
    assert index.pieces((EVENTS, 0), 20, 40, last_epoch=3).reaches == 20
    found = index.pieces((EVENTS, 0), 20, 40, last_epoch=2)
    assert offsets(store, found, last_epoch=2) == list(range(20, 40))
    with pytest.raises(CorruptionError, match=r"tail/.*leader epoch falls from 3 to 2 at offset 20"):
        offsets(store, found, last_epoch=3)


def test_a_large_section_is_read_in_windows_and_a_batch_larger_than_one_whole(
    store: MemoryStore, writer: CutWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_records, "WINDOW_BYTES", 2000)
    data = batches(0, 50) + batch(50, 10, value_bytes=5000) + batches(60, 100)
    ref = writer.tail([Saved(OTHER, 0, batch(0)), Saved(EVENTS, 0, data)])
    (section,) = [one for one in open_tail(store, ref).sections if one.topic_id == EVENTS]
    runs = list(read_section(store, ref.key, section))
    assert len(runs) > 4
    assert b"".join(run.data for run in runs) == data
    assert max(len(run.data) for run in runs) < 60_000
    assert runs[0].batches.base_offsets[0] == 0


def test_a_border_within_a_batch_is_named(store: MemoryStore, writer: CutWriter) -> None:
    ref = writer.tail([Saved(EVENTS, 0, batches(0, 40))])
    span = Span(ref.key, 0, open_tail(store, ref).sections[0])
    for pieces in ([Piece(span, 0, 25)], [Piece(span, 0, 20), Piece(span, 20, 39)]):
        with pytest.raises(CorruptionError, match=r"tail/.*within a batch"):
            list(read_pieces(store, pieces))
    later = writer.tail([Saved(EVENTS, 0, batches(10, 40))], cut=2)
    other = Span(later.key, 0, open_tail(store, later).sections[0])
    with pytest.raises(CorruptionError, match=r"tail/.*within a batch"):
        list(read_pieces(store, [Piece(span, 0, 20)])) + list(
            read_pieces(store, [Piece(span, 0, 10), Piece(other, 10, 15)])
        )
    with pytest.raises(CorruptionError, match="a piece begins at 30, the one before ends at 20"):
        list(read_pieces(store, [Piece(span, 0, 20), Piece(span, 30, 40)]))


def test_a_log_that_starts_within_a_batch_has_that_batch(store: MemoryStore, writer: CutWriter) -> None:
    index = index_tails(store, [writer.tail([Saved(EVENTS, 0, batches(0, 40))])])
    found = index.pieces((EVENTS, 0), 14, 40)
    assert [(one.first, one.end) for one in found.pieces] == [(14, 40)]
    assert offsets(store, found) == list(range(10, 40))


def changed(writer: CutWriter, store: MemoryStore, **changes: Any) -> list[Any]:
    """A tail whose section says something else than its batches: as a broken writer would."""
    ref = writer.tail([Saved(EVENTS, 0, batches(0, 40, epoch=1), leader_epoch=1)])
    section = open_tail(store, ref).sections[0]._replace(**changes)
    return list(read_section(store, ref.key, section))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"crc32c": 5}, "crc32c is"),
        ({"record_count": 39}, "record_count is 40"),
        ({"max_timestamp": AT_MS}, "max_timestamp is"),
        ({"last_batch_epoch": 0}, "last_batch_epoch is 1"),
        ({"first_offset": 10}, "offset"),
        ({"end_offset": 39}, "holds offset 39"),
        ({"length": 500}, "cut at"),
        ({"length": 1 << 20}, "tail/"),
    ],
)
def test_a_section_that_is_not_what_its_row_says_is_named(
    store: MemoryStore, writer: CutWriter, changes: dict[str, int], said: str
) -> None:
    with pytest.raises(CorruptionError, match=said) as e:
        changed(writer, store, **changes)
    assert str(e.value).startswith("tail/")


def test_batches_of_before_leader_epochs_are_read(store: MemoryStore, writer: CutWriter) -> None:
    data = batches(0, 20, epoch=-1)
    ref = writer.tail([Saved(EVENTS, 0, data)])
    section = open_tail(store, ref).sections[0]
    assert section.last_batch_epoch == 0
    assert b"".join(run.data for run in read_section(store, ref.key, section)) == data


def test_leader_epochs_that_fall_are_named(store: MemoryStore, writer: CutWriter) -> None:
    ref = writer.tail([Saved(EVENTS, 0, batches(0, 20, epoch=4) + batches(20, 30, epoch=3), leader_epoch=4)])
    with pytest.raises(CorruptionError, match="leader epoch falls from 4 to 3 at offset 20"):
        list(read_section(store, ref.key, open_tail(store, ref).sections[0]))


def test_nothing_of_a_damaged_window_is_handed_out(
    store: MemoryStore, writer: CutWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch's checksum leaves out its base offset: the section's tells, before its batch is shown."""
    monkeypatch.setattr(tail_records, "WINDOW_BYTES", 2000)
    ref = writer.tail([Saved(EVENTS, 0, batches(0, 20))])
    section = open_tail(store, ref).sections[0]
    data = bytearray(store.get(ref.key, max_size=1 << 20))
    second = struct.unpack_from(">i", data, 8)[0] + 12
    struct.pack_into(">q", data, second, 11)
    store.put(ref.key, bytes(data))
    seen: list[int] = []
    runs = read_section(store, ref.key, section._replace(end_offset=21))
    with pytest.raises(CorruptionError, match=r"tail/.*"):
        seen.extend(offset for run in runs for offset in run.batches.base_offsets)
    assert 11 not in seen


def test_objects_of_another_cluster_are_refused_and_those_of_an_ancestor_are_not(store: MemoryStore) -> None:
    strange = CutWriter(store, "c-9")
    tail = strange.tail([Saved(EVENTS, 0, batch(0))])
    strange.cut({EVENTS: [row(10)]}, [tail])
    cuts = open_cuts(store)
    for call in (
        lambda owners: open_cuts(store, owners),
        lambda owners: open_named_cut(store, cuts.newest, owners),
        lambda owners: open_tail(store, tail, owners),
        lambda owners: find_tail(store, tail.key, owners),
    ):
        with pytest.raises(CorruptionError, match=r"(CUT|cut/|tail/).*of cluster c-9"):
            call(OWN)
        assert call(frozenset(("c-1", "c-9"))) == call(None)


def test_a_tail_that_is_not_the_one_a_cut_names_is_named(store: MemoryStore, writer: CutWriter) -> None:
    one = writer.tail([Saved(EVENTS, 0, batch(0))])
    two = writer.tail([Saved(EVENTS, 0, batches(0, 20))], cut=2)
    for wrong in (
        one._replace(footer_crc=one.footer_crc ^ 1),
        one._replace(footer_position=one.footer_position - 1),
        one._replace(size=one.size + 5),
        one._replace(size=one.size - 1),
        two._replace(key=one.key),
    ):
        with pytest.raises(CorruptionError, match=one.key):
            open_tail(store, wrong)
    store.put(one.key, store.get(two.key, max_size=1 << 20))
    with pytest.raises(CorruptionError, match="the footer is of cut 2, level 0"):
        find_tail(store, one.key)
    store.delete([one.key])
    with pytest.raises(ObjectNotFound, match="tail/"):
        index_tails(store, [two, one])


def test_a_footer_of_a_terabyte_is_refused_before_it_is_asked_for(
    store: MemoryStore, writer: CutWriter
) -> None:
    one = writer.tail([Saved(EVENTS, 0, batch(0))])
    with pytest.raises(CorruptionError, match="footer"):
        open_tail(store, TailRef(one.key, 1 << 40, 10, 7))


def test_the_cut_before_a_damaged_one_is_taken_and_the_damaged_one_named(
    store: MemoryStore, writer: CutWriter
) -> None:
    for number in (1, 2, 3, 4):
        writer.cut({EVENTS: [row(number)]}, [], number=number, is_complete=number != 2)
    kept = writer.kept
    store.put(kept[3].key, store.get(kept[3].key, max_size=1 << 20) + b"x")
    store.delete([kept[2].key])
    named: list[tuple[int, str]] = []
    found = newest_readable(
        store,
        open_cuts(store),
        lambda ref: ref.is_complete,
        lambda ref, problem: named.append((ref.cut, str(problem))),
    )
    assert found is not None
    assert (found.ref.cut, found.cut.cut) == (1, 1)
    assert [cut for cut, _ in named] == [4, 3]
    assert all(kept[cut - 1].key in why for cut, why in named)
    assert newest_readable(store, open_cuts(store), lambda ref: ref.cut > 2, lambda ref, e: None) is None


def test_no_flipped_bit_and_no_lost_or_added_byte_changes_what_is_read(
    store: MemoryStore, writer: CutWriter
) -> None:
    tail = writer.tail([Saved(EVENTS, 0, batches(0, 20)), Saved(OTHER, 1, batch(5, 3))])
    writer.cut({EVENTS: [row(20)], OTHER: [row(0), row(8, start=5)]}, [tail])
    right = everything(store)
    source = random.Random(7)
    for key in ("CUT", writer.kept[0].key, tail.key):
        sound = store.get(key, max_size=1 << 20)
        for _ in range(250):
            data = bytearray(sound)
            kind = source.randrange(3)
            at = source.randrange(len(data))
            if kind == 0:
                data[at] ^= 1 << source.randrange(8)
            elif kind == 1:
                del data[at : at + source.randrange(1, 20)]
            else:
                data[at:at] = source.randbytes(source.randrange(1, 20))
            store.put(key, bytes(data))
            # A tail may be longer than its cut says: what the cut names is still there.
            found = outcome(store)
            assert found == right or (isinstance(found, str) and key in found), (key, kind, at)
        store.put(key, sound)


def outcome(store: MemoryStore) -> object:
    try:
        return everything(store)
    except CorruptionError as e:
        return str(e)


def everything(store: MemoryStore) -> tuple[CutRef, object, list[bytes]]:
    cuts = open_cuts(store, OWN)
    cut = open_named_cut(store, cuts.newest, OWN)
    data = []
    for ref in cut.tails:
        for section in open_tail(store, ref, OWN).sections:
            data += [bytes(run.data) for run in read_section(store, ref.key, section)]
    return cuts.newest, cut, data
