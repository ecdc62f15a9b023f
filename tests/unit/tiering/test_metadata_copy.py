"""The newest metadata snapshot in the bucket: written, named, and replaced by newer ones only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.inspect.fsck import fsck
from service.metadata.bucket_copy import newest_copy
from service.metadata.image import MetadataImage
from service.metadata.persistent import PersistentMap
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.node.cold_tier import metadata_snapshot
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import open_cluster_file, open_metadata
from service.remote.stores.errors import ObjectNotFound, StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from service.security.principal import Principal
from service.security.scram_credential import ScramCredential
from service.security.tokens import DelegationToken
from service.tiering.fence import Displaced, Fence, OwnWrites, claim_prefix, take_over
from service.tiering.metadata_copy import MetadataCopies, MetadataSnapshot, OlderMetadata, write_metadata
from service.tiering.offload import OffloadPool

T = TypeVar("T")

CLUSTER = "c-1"
WRITER, OTHER = Writer(1, UUID(int=1)), Writer(1, UUID(int=2))


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(SystemThreads())
    claim_prefix(store, CLUSTER)
    take_over(store, CLUSTER, Stamp(5, WRITER), OwnWrites())
    return store


def snapshot(end_offset: int, data: bytes = b"metadata") -> MetadataSnapshot:
    return MetadataSnapshot(end_offset, 3, lambda: [data, b"%d" % end_offset])


def write(store: MemoryStore, end_offset: int, writer: Writer = WRITER) -> None:
    write_metadata(store, CLUSTER, snapshot(end_offset), writer, UUID(int=100 + end_offset), OwnWrites())


def kept(store: MemoryStore) -> list[int]:
    return [int(info.key.split("/")[1][:20]) for info in store.list("metadata")]


def test_a_metadata_copy_is_named_in_cluster_json_and_read_back(store: MemoryStore) -> None:
    assert open_metadata(store) is None
    write(store, 64)
    found = open_metadata(store)
    assert found is not None
    ref, data = found
    assert (ref.end_offset, ref.epoch, data) == (64, 3, b"metadata64")
    cluster = open_cluster_file(store)
    assert (cluster.cluster_id, cluster.stamp) == (CLUSTER, Stamp(5, WRITER)), "what else it says stays"
    assert fsck(store).errors == []


def test_a_metadata_copy_decodes_to_the_image(store: MemoryStore) -> None:
    image = MetadataImage()
    taken = MetadataSnapshot(image.offset + 1, image.epoch, lambda: encode_image(image, 7))
    write_metadata(store, CLUSTER, taken, WRITER, UUID(int=9), OwnWrites())
    found = open_metadata(store)
    assert found is not None
    ref, data = found
    read = decode_snapshot([data], end_offset=ref.end_offset, epoch=ref.epoch)
    assert read.topics_by_name == image.topics_by_name


def with_users() -> MetadataImage:
    credential = ScramCredential(b"the salt", b"the stored key", b"the server key", 4096)
    users = {"alice": {1: credential, 2: credential}, "bob": {2: credential}}
    carol = Principal("User", "carol")
    tokens = {"the token": DelegationToken("the token", carol, carol, (), 1, 3, 2)}
    return replace(MetadataImage(offset=9, epoch=3), scram=PersistentMap(users), tokens=PersistentMap(tokens))


def test_no_credential_is_in_a_copy_and_cluster_json_says_of_how_many_users(store: MemoryStore) -> None:
    taken = metadata_snapshot(with_users(), 7, has_credentials=False)
    ref = write_metadata(store, CLUSTER, taken, WRITER, UUID(int=9), OwnWrites())
    data = store.get(ref.key, max_size=1 << 20)
    for secret in (b"the salt", b"the stored key", b"the server key", b"alice", b"the token", b"carol"):
        assert secret not in data
    assert open_cluster_file(store).metadata == ref
    assert ref.omitted_users == 2
    found = newest_copy(store)
    assert found.copy is not None
    assert dict(found.copy.image.scram) == dict(found.copy.image.tokens) == {}
    assert found.named is not None
    assert found.named.omitted_users == 2


def test_credentials_are_in_a_copy_where_the_operator_wants_them(store: MemoryStore) -> None:
    taken = metadata_snapshot(with_users(), 7, has_credentials=True)
    ref = write_metadata(store, CLUSTER, taken, WRITER, UUID(int=9), OwnWrites())
    assert ref.omitted_users == 0
    found = newest_copy(store).copy
    assert found is not None
    assert found.image.scram == with_users().scram
    assert found.image.tokens == with_users().tokens


def test_tokens_are_left_out_where_there_are_no_users(store: MemoryStore) -> None:
    alone = replace(with_users(), scram=PersistentMap())
    taken = metadata_snapshot(alone, 7, has_credentials=False)
    ref = write_metadata(store, CLUSTER, taken, WRITER, UUID(int=9), OwnWrites())
    assert b"the token" not in store.get(ref.key, max_size=1 << 20)
    assert ref.omitted_users == 0


def test_passwords_that_a_controller_of_kafkas_wrote_are_left_out_and_counted(store: MemoryStore) -> None:
    settings = {
        (4, "1"): {
            "listener.name.clients.ssl.key.password": "geheim-1",
            "listener.name.clients.plain.sasl.jaas.config": "geheim-2",
            "listener.name.clients.ssl.keystore.location": "/a.pem",
            "my.reporter.token": "geheim-3",
            "log.cleaner.threads": "2",
        },
        (4, "2"): {"ssl.truststore.password": "geheim-4"},
        (4, ""): {"num.io.threads": "9"},
        (2, "topic"): {"retention.ms": "7"},
    }
    image = replace(MetadataImage(offset=9, epoch=3), configs=PersistentMap(settings))
    taken = metadata_snapshot(image, 7, has_credentials=False)
    ref = write_metadata(store, CLUSTER, taken, WRITER, UUID(int=9), OwnWrites())
    assert b"geheim" not in store.get(ref.key, max_size=1 << 20)
    assert (ref.omitted_users, ref.omitted_settings) == (0, 4)
    found = newest_copy(store).copy
    assert found is not None
    assert dict(found.image.configs) == {
        (4, "1"): {"listener.name.clients.ssl.keystore.location": "/a.pem", "log.cleaner.threads": "2"},
        (4, ""): {"num.io.threads": "9"},
        (2, "topic"): {"retention.ms": "7"},
    }
    whole = metadata_snapshot(image, 7, has_credentials=True)
    assert whole.omitted_settings() == 0
    assert b"geheim-4" in b"".join(whole.encode())


def test_the_last_two_are_kept_and_nothing_newer_is_touched(store: MemoryStore) -> None:
    for end_offset in (10, 20, 30, 40):
        write(store, end_offset)
    assert kept(store) == [30, 40]
    store.put(f"metadata/{99:020d}-{3:010d}-{UUID(int=5)}.checkpoint", b"of whom?")
    store.put("metadata/else", b"not ours")
    write(store, 50)
    assert [info.key for info in store.list("metadata") if info.key.endswith("else")] == ["metadata/else"]
    store.delete(["metadata/else"])
    assert kept(store) == [40, 50, 99]


def test_older_metadata_is_not_written_over_newer(store: MemoryStore) -> None:
    write(store, 64)
    with pytest.raises(OlderMetadata, match="up to offset 64 of epoch 3 in life 0, this node up to 63"):
        write(store, 63)
    found = open_metadata(store)
    assert found is not None
    assert found[0].end_offset == 64
    assert kept(store) == [64], "nothing was uploaded for it"


def test_an_existing_metadata_copy_is_not_written_again(store: MemoryStore) -> None:
    write(store, 64)
    before = store.head("cluster.json").etag
    write_metadata(store, CLUSTER, snapshot(64, b"other"), WRITER, UUID(int=9), OwnWrites())
    assert store.head("cluster.json").etag == before
    assert kept(store) == [64]


def test_a_process_that_was_displaced_writes_no_metadata(store: MemoryStore) -> None:
    with pytest.raises(Displaced):
        write(store, 64, OTHER)
    assert kept(store) == []


def test_one_that_is_displaced_while_it_uploads_is_not_named(store: MemoryStore) -> None:
    def encode() -> list[bytes]:
        take_over(store, CLUSTER, Stamp(6, OTHER), OwnWrites())
        return [b"late"]

    with pytest.raises(Displaced):
        write_metadata(store, CLUSTER, MetadataSnapshot(64, 3, encode), WRITER, UUID(int=9), OwnWrites())
    assert open_metadata(store) is None
    write(store, 70, OTHER)
    write(store, 80, OTHER)
    assert kept(store) == [70, 80], "what nobody named goes with the older ones"


def test_a_later_life_writes_over_an_earlier_one_and_removes_its_copies(store: MemoryStore) -> None:
    """Offsets begin anew with each life: those of the earlier one are greater, and say nothing."""
    for end_offset in (600, 626):
        write(store, end_offset)
    for end_offset in (21, 30):
        taken = MetadataSnapshot(end_offset, 1, lambda: [b"of life 1"], 1)
        write_metadata(store, CLUSTER, taken, WRITER, UUID(int=end_offset), OwnWrites())
        named = open_cluster_file(store).metadata
        assert named is not None
        assert (named.life, named.end_offset) == (1, end_offset)
    assert kept(store) == [21, 30]
    with pytest.raises(OlderMetadata, match="life 1, this node up to 900 of epoch 3 in life 0"):
        write(store, 900)


def test_within_a_life_the_epoch_orders_copies_before_the_offset(store: MemoryStore) -> None:
    write(store, 64)
    older = MetadataSnapshot(90, 2, lambda: [b"epoch 2"])
    with pytest.raises(OlderMetadata):
        write_metadata(store, CLUSTER, older, WRITER, UUID(int=9), OwnWrites())


def test_damage_is_named_and_a_missing_one_is_looked_for_again(store: MemoryStore) -> None:
    write(store, 64)
    (info,) = store.list("metadata")
    store.put(info.key, b"metadat_64")
    with pytest.raises(CorruptionError, match=f"{info.key}: .*another checksum"):
        open_metadata(store)
    assert fsck(store).errors
    store.delete([info.key])
    with pytest.raises(ObjectNotFound):
        open_metadata(store)


def test_a_copy_that_is_replaced_during_the_read_is_found(store: MemoryStore) -> None:
    write(store, 10)

    class Replaced(MemoryStore):
        def get(self, key: str, *, max_size: int) -> bytes:
            if key.startswith("metadata/") and store.list("metadata") and len(kept(store)) < 2:
                write(store, 20)
                write(store, 30)
            return store.get(key, max_size=max_size)

    found = open_metadata(Replaced(SystemThreads()))
    assert found is not None
    assert found[0].end_offset == 30


def test_a_store_that_fails_between_leaves_what_was_named(store: MemoryStore) -> None:
    write(store, 10)

    class Failing(MemoryStore):
        def __getattribute__(self, name: str) -> object:
            if name == "put_if_match":
                raise StoreUnavailable("away")
            return getattr(store, name)

    with pytest.raises(StoreUnavailable):
        write(Failing(SystemThreads()), 20)
    found = open_metadata(store)
    assert found is not None
    assert found[0].end_offset == 10
    write(store, 30)
    assert kept(store) == [20, 30]


class DamagedOnce:
    """`cluster.json` is damaged when it is looked at for the first time, and repaired then."""

    is_conditional = True

    def __init__(self) -> None:
        self.own = OwnWrites()
        self.looks = 0

    async def check(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise CorruptionError("cluster.json")


class AtOnce:
    """The pool of who waits for it."""

    async def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return call(*args, **kwargs)


def test_a_copy_that_failed_for_damage_is_due_still(store: MemoryStore) -> None:
    clock = ManualClock()
    copies = MetadataCopies(
        store, CLUSTER, WRITER, lambda: snapshot(64), lambda: UUID(int=9), cast("OffloadPool", AtOnce()),
        cast("Fence", DamagedOnce()), clock, interval_ms=1 << 50,
    )  # fmt: skip
    now_ms = clock.monotonic_ms()
    with pytest.raises(CorruptionError):
        asyncio.run(copies.run_due(now_ms))
    asyncio.run(copies.run_due(now_ms))
    assert open_metadata(store) is not None
