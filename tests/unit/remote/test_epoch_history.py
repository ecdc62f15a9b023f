"""The newest segment tells the leader epochs of its chain; otherwise they are read along it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.remote.format.manifest import ManifestLimits
from service.remote.format.segment_object import (
    Footer,
    LeaderEpochs,
    SegmentIdentity,
    check_history,
    decode_epoch_history,
    decode_footer,
    plan_object,
)
from service.remote.reading.object_reader import entry_of, open_footer, read_section
from service.remote.reading.reader import RemoteReader
from service.remote.reading.segment_proof import prove_segment
from service.remote.stores.memory_store import MemoryStore
from tests.support.world import WORLD
from tests.unit.remote.archive import CLUSTER, TIP, TOPIC_ID, Archive, batch_of, blocks_of

HISTORY = ((0, 0), (2, 10), (3, 25), (6, 45))


class Counting(MemoryStore):
    """Keys that were read."""

    def __init__(self) -> None:
        super().__init__(SystemThreads())
        self.read: list[str] = []

    def get_range(self, key: str, start: int, length: int) -> Any:
        self.read.append(key)
        return super().get_range(key, start, length)


def add(archive: Archive, epoch: int, history: LeaderEpochs = ()) -> None:
    """One more segment of five records, whose object has this history."""
    base = archive.next_offset
    log = batch_of(base, 5, 20, epoch, 1000 + base)
    archive.next_offset += 5
    identity = SegmentIdentity(CLUSTER, TOPIC_ID, TIP.topic, 3, base, base + 4, epoch, archive.new_uuid())
    planned = plan_object(
        identity,
        log=lambda: [log],
        log_length=len(log),
        blocks=blocks_of(log, 4096),
        offset_index=b"",
        time_index=b"",
        leader_epochs=((epoch, base),),
        epoch_history=history,
        transactional_batch_count=0,
    )
    archive.store.put_stream(planned.key, planned.parts(), planned.size)
    archive.add_entry(entry_of(planned.footer), epoch)


def chain(last: LeaderEpochs = ()) -> tuple[Counting, Archive]:
    """Ten segments in pages, of epochs 0, 0, 2, 2, 2, 3, 3, 3, 3, 6; the last one has this history."""
    store = Counting()
    archive = Archive(store, limits=ManifestLimits(entries=2, page_refs=2), producer_snapshot=b"")
    for number, epoch in enumerate((0, 0, 2, 2, 2, 3, 3, 3, 3, 6)):
        add(archive, epoch, last if number == 9 else ())
    return store, archive


@pytest.fixture
def readers() -> Iterator[list[RemoteReader]]:
    made: list[RemoteReader] = []
    yield made
    for one in made:
        one.close()


def epochs_at_the_end(readers: list[RemoteReader], store: Counting, archive: Archive) -> LeaderEpochs:
    readers.append(RemoteReader(store, WORLD, threads=1))
    store.read.clear()
    return readers[-1].archive_end(TIP, archive.manifest_key).result(20).epochs


def test_epochs_come_from_the_newest_segment_without_a_read_of_any_page(readers: list[RemoteReader]) -> None:
    store, archive = chain(HISTORY)
    assert epochs_at_the_end(readers, store, archive) == HISTORY
    assert not any("/page/" in key for key in store.read)


def test_epochs_of_an_older_object_are_read_along_the_chain(readers: list[RemoteReader]) -> None:
    store, archive = chain()
    assert epochs_at_the_end(readers, store, archive) == HISTORY
    assert any("/page/" in key for key in store.read)


def test_a_history_that_begins_behind_the_chains_start_is_not_enough(readers: list[RemoteReader]) -> None:
    store, archive = chain(HISTORY[1:])
    assert epochs_at_the_end(readers, store, archive) == HISTORY


def test_epochs_that_ended_before_the_chains_start_are_left_out(readers: list[RemoteReader]) -> None:
    store, archive = chain(((0, 0), (1, 4), *HISTORY[1:]))
    drop = archive.manifest.drop_before(12, leader_epoch=6, load=archive.load)
    archive.commit(drop.manifest)
    assert epochs_at_the_end(readers, store, archive) == HISTORY[1:]


def test_an_object_is_proved_with_its_history() -> None:
    store, archive = chain(HISTORY)
    entry = archive.manifest.entries[-1]
    footer = open_footer(store, entry.key)
    section = footer.sections["epoch_history"]
    assert read_section(store, entry.key, section) == b"0\n4\n0 0\n2 10\n3 25\n6 45\n"
    assert section.position + section.length == footer.tail_position, "it lies before the tail"

    def read(position: int, length: int) -> Any:
        return store.get_range(entry.key, position, length)

    prove_segment(entry, footer, read)
    store, archive = chain(((0, 0), (4, 45)))
    entry = archive.manifest.entries[-1]
    with pytest.raises(CorruptionError, match="epoch history: ends in"):
        prove_segment(entry, open_footer(store, entry.key), read_of(store, entry.key))


def read_of(store: Counting, key: str) -> Any:
    return lambda position, length: store.get_range(key, position, length)


def test_a_wrong_history_is_an_error_that_names_its_object(readers: list[RemoteReader]) -> None:
    store, archive = chain(((0, 0), (4, 45)))
    with pytest.raises(CorruptionError, match=archive.manifest.entries[-1].key):
        epochs_at_the_end(readers, store, archive)


def footer() -> Footer:
    store, archive = chain(HISTORY)
    return open_footer(store, archive.manifest.entries[-1].key)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"0\n0\n",
        b"1\n1\n6 45\n",
        b"0\n2\n6 45\n",
        b"0\n1\n6 45",
        b"0\n1\n6 45 \n",
        b"0\n1\n-6 45\n",
        b"0\n1\n6 " + b"9" * 5000 + b"\n",
        b"0\n2\n7 3\n6 45\n",
        b"0\n2\n3 45\n6 45\n",
        b"0\n1\n6 46\n",
        b"0\n2\n6 45\n7 49\n",
        b"0\n1\n\xff 45\n",
    ],
)
def test_a_section_that_is_no_history_of_its_segment_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="epoch history"):
        decode_epoch_history(data, footer())


def test_a_history_may_have_the_segments_first_epoch_begin_earlier() -> None:
    check_history(((1, 3), (2, 10), (5, 40)), ((2, 20), (5, 40)), 49)
    check_history(((2, 20),), ((2, 20),), 20)
    for history in ((), ((5, 40),), ((2, 21), (5, 40)), ((2, 10), (4, 30), (5, 40)), ((2, 10), (5, 41))):
        with pytest.raises(CorruptionError):
            check_history(history, ((2, 20), (5, 40)), 49)


def test_an_object_without_a_history_is_as_it_was(readers: list[RemoteReader]) -> None:
    store, archive = chain()
    found = open_footer(store, archive.manifest.entries[0].key)
    assert "epoch_history" not in found.sections
    data = store.get(archive.manifest.entries[0].key, max_size=1 << 20)
    assert decode_footer(data, len(data)) == found
    assert found.identity.uuid != UUID(int=0)
