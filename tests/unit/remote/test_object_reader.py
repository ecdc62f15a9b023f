"""Opening of objects by name; a corrupt one is reported by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.remote.format.keys import CLUSTER_KEY, TOPICS_KEY, HeadKey, head_key
from service.remote.format.manifest import ManifestLimits
from service.remote.format.manifest_codec import (
    ClusterFile,
    Head,
    TopicsFileRow,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_topics,
    head_of,
)
from service.remote.reading.object_reader import (
    footer_of,
    open_chain,
    open_cluster,
    open_footer,
    open_footer_of,
    open_head,
    open_named,
    open_page,
    open_published,
    open_topics,
    read_section,
)
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.memory_store import MemoryStore
from service.tiering.chain import ChainStore
from tests.support.world import WORLD
from tests.unit.remote.archive import CLUSTER, TIP, TOPIC_ID, Archive

KEY = HeadKey(TOPIC_ID, TIP.partition)
HEAD = head_key(*KEY)


class BusyStore(MemoryStore):
    """Something happens right after each GET of HEAD."""

    def __init__(self) -> None:
        super().__init__(SystemThreads())
        self.after_head: Callable[[], None] = lambda: None
        self.heads = 0

    def get(self, key: str, *, max_size: int) -> bytes:
        data = super().get(key, max_size=max_size)
        if key == HEAD:
            self.heads += 1
            self.after_head()
        return data


@pytest.fixture
def store() -> BusyStore:
    return BusyStore()


@pytest.fixture
def archive(store: BusyStore) -> Archive:
    archive = Archive(store, limits=ManifestLimits(entries=2))
    for _ in range(4):
        archive.add_segment(2)
    return archive


def test_the_published_chain_is_the_one_that_head_names(store: BusyStore, archive: Archive) -> None:
    chain = open_published(store, KEY)
    assert chain is not None
    assert (chain.manifest, chain.key) == (archive.manifest, archive.manifest_key)
    assert chain == open_chain(store, archive.manifest_key)
    assert open_named(store, chain.head) == archive.manifest


def test_nothing_is_published_where_there_is_no_head(store: BusyStore, archive: Archive) -> None:
    assert open_published(store, KEY._replace(partition=9)) is None
    store.delete([HEAD])
    assert open_published(store, KEY) is None


def test_a_manifest_that_expires_after_head_was_read_is_followed_by_the_next(
    store: BusyStore, archive: Archive
) -> None:
    def expire() -> None:
        if store.heads < 3:
            old = archive.manifest_key
            archive.add_segment(1)
            store.delete([old])

    store.after_head = expire
    chain = open_published(store, KEY)
    assert chain is not None
    assert chain.key == archive.manifest_key
    assert store.heads == 3


def test_a_partition_that_goes_after_head_was_read_is_gone(store: BusyStore, archive: Archive) -> None:
    store.after_head = lambda: store.delete([HEAD, archive.manifest_key])
    assert open_published(store, KEY) is None


def test_a_head_that_names_nothing_is_an_error_in_the_end(store: BusyStore, archive: Archive) -> None:
    store.delete([archive.manifest_key])
    with pytest.raises(ObjectNotFound, match=archive.manifest_key):
        open_published(store, KEY)
    assert store.heads == 3


def test_a_manifest_that_is_known_is_not_read_again(store: BusyStore, archive: Archive) -> None:
    asked: list[Head] = []

    def known(head: Head) -> object:
        asked.append(head)
        return archive.manifest

    store.delete([archive.manifest_key])
    chain = open_published(store, KEY, known)  # type: ignore[arg-type]
    assert chain is not None
    assert chain.manifest is archive.manifest
    assert asked == [open_head(store, KEY)]


def test_a_manifest_of_other_bytes_than_heads_is_refused(store: BusyStore, archive: Archive) -> None:
    head = open_head(store, KEY)
    for wrong in (replace(archive.manifest, leader_epoch=0, start_offset=1), None):
        data = encode_manifest(wrong) if wrong else store.get(head.manifest_key, max_size=1 << 20) + b"x"
        store.put(head.manifest_key, data)
        with pytest.raises(CorruptionError, match=f"{head.manifest_key}: .*than HEAD's"):
            open_published(store, KEY)


def test_a_manifest_under_the_name_of_another_version_is_refused(store: BusyStore, archive: Archive) -> None:
    """Even when HEAD agrees with its bytes."""
    key = archive.manifest_key
    for wrong in (
        replace(archive.manifest, version=archive.manifest.version + 1),
        replace(archive.manifest, leader_epoch=7),
    ):
        data = encode_manifest(wrong)
        store.put(key, data)
        head = head_of(archive.manifest, key, data)
        store.put(HEAD, encode_head(head))
        openers: list[Callable[[], object]] = [
            lambda: open_published(store, KEY),
            lambda: open_chain(store, key),
            lambda: ChainStore(store, CLUSTER, WORLD).load(TIP, key),
        ]
        for opened in openers:
            with pytest.raises(CorruptionError, match=f"{key}: holds version"):
                opened()


def test_the_head_of_another_partition_is_no_head(store: BusyStore, archive: Archive) -> None:
    other = KEY._replace(partition=4)
    store.put(head_key(*other), store.get(HEAD, max_size=1 << 20))
    with pytest.raises(CorruptionError, match=f"{head_key(*other)}: the HEAD of .*/3"):
        open_head(store, other)
    chains = ChainStore(store, CLUSTER, WORLD)
    assert chains.read_head(TIP).head is not None
    assert chains.read_head(TIP._replace(partition=4)).head is None


def test_a_corrupt_object_is_reported_by_name(store: BusyStore, archive: Archive) -> None:
    store.put(CLUSTER_KEY, encode_cluster(ClusterFile(CLUSTER)))
    store.put(TOPICS_KEY, encode_topics(CLUSTER, 1, [TopicsFileRow("flights", TOPIC_ID, 4, {})]))
    chain = open_chain(store, archive.manifest_key)
    entry, ref = chain.manifest.entries[0], chain.manifest.pages[0]
    section = open_footer_of(store, entry).sections["producer_snapshot"]
    opens: list[tuple[str, Callable[[], object]]] = [
        (CLUSTER_KEY, lambda: open_cluster(store)),
        (TOPICS_KEY, lambda: open_topics(store)),
        (HEAD, lambda: open_head(store, KEY)),
        (HEAD, lambda: open_published(store, KEY)),
        (chain.key, lambda: open_chain(store, chain.key)),
        (chain.key, lambda: open_named(store, chain.head)),
        (ref.key, lambda: open_page(store, ref, chain.manifest)),
        (ref.key, lambda: ChainStore(store, CLUSTER, WORLD).page(TIP, ref)),
        (entry.key, lambda: open_footer(store, entry.key)),
        (entry.key, lambda: open_footer_of(store, entry)),
        (entry.key, lambda: footer_of(entry, store.get(entry.key, max_size=1 << 20)[-100:])),
        (entry.key, lambda: read_section(store, entry.key, section)),
    ]
    for key, opened in opens:
        whole = store.get(key, max_size=1 << 20)
        opened_before = None if opened is opens[-2][1] else opened()
        for damaged in (bytes(len(whole)), whole[: len(whole) // 3], b"{}"):
            store.put(key, damaged)
            with pytest.raises(CorruptionError, match=key):
                opened()
        store.put(key, whole)
        assert opened_before is None or opened() == opened_before
