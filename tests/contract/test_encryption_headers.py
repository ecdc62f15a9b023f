"""Buckets that demand encryption of every write: which requests have the headers, and which must not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from service.base.errors import StorageError
from service.remote.stores.obstore_store import S3Bucket, open_store
from service.remote.stores.s3_encryption import S3Encryption
from tests.contract.backends import PART_BYTES, REGION, options
from tests.contract.conftest import LOCALSTACK
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.stores import ACCESS, SECRET, s3_client
from tests.support.world import WORLD

ALGORITHM, KEY_ID = "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id"
KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
SERVERS = ["moto", pytest.param("versitygw", marks=pytest.mark.versitygw), *LOCALSTACK]


def writes(seen: Seen) -> bool:
    """Return whether S3 looks at the headers: a whole object, or the beginning of an upload in parts."""
    return (seen.method == "PUT" and "partNumber=" not in seen.path) or seen.path.partition("?")[2] in (
        "uploads",
        "uploads=",
    )


def demanding(seen: Seen) -> Fault:
    return Fault.DENIED if writes(seen) and ALGORITHM not in seen.headers else Fault.PASS


@pytest.fixture(params=SERVERS)
def proxy(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    with fault_proxy(request.getfixturevalue(f"{request.param}_contract_endpoint")) as made:
        made.plan = demanding
        yield made


def bucket(proxy: FaultProxy, encryption: S3Encryption | None) -> S3Bucket:
    name = f"firn-{uuid.uuid4()}"
    s3_client(f"http://{proxy.target}").create_bucket(Bucket=name)
    store = open_store(
        f"s3://{name}/some/prefix",
        endpoint=proxy.endpoint,
        region=REGION,
        access_key_id=ACCESS,
        secret_access_key=SECRET,
        encryption=encryption,
        options=options(),
        world=WORLD,
    )
    assert isinstance(store, S3Bucket)
    return store


def exercise(store: S3Bucket) -> None:
    """Every kind of write, and every kind of read."""
    store.put("a", b"1")
    assert store.put_if_absent("b", b"2")
    assert not store.put_if_absent("b", b"3")
    tagged = store.get_tagged("b", max_size=100)
    store.put_if_match("b", b"4", tagged.tag)
    store.put_stream("c", iter([bytes(PART_BYTES), b"end"]), PART_BYTES + 3)
    store.put_stream("d", iter([b"small"]), 5)
    store.verifies_uploads()
    assert store.get("b", max_size=100) == b"4"
    assert bytes(store.get_range("c", PART_BYTES, 3)) == b"end"
    assert store.get_suffix("c", 3) == (b"end", PART_BYTES + 3)
    assert store.head("c").size == PART_BYTES + 3
    assert {one.key for one in store.list("")} >= {"a", "b", "c", "d"}
    store.delete(["a", "b", "c", "d"])


def test_every_write_asks_for_s3s_own_keys_and_nothing_else_does(proxy: FaultProxy) -> None:
    exercise(bucket(proxy, S3Encryption("AES256")))
    asked = [one for one in proxy.seen if writes(one)]
    # a, b three times, c, d, and the probe's object whole and damaged
    assert len(asked) == 8
    assert [one for one in asked if one.method == "POST"]
    assert {one.headers.get(ALGORITHM) for one in asked} == {"AES256"}
    assert not [one for one in asked if KEY_ID in one.headers]
    # S3 refuses a read or a part that has them.
    others = [one for one in proxy.seen if not writes(one)]
    assert {one.method for one in others} >= {"GET", "HEAD", "PUT", "POST"}
    assert not [one for one in others if ALGORITHM in one.headers]
    assert proxy.failed == 0


def test_a_key_of_kms_is_named_by_every_write(proxy: FaultProxy) -> None:
    store = bucket(proxy, S3Encryption("aws:kms", KEY))
    proxy.plan = lambda seen: Fault.DENIED if writes(seen) else Fault.PASS
    for write in (
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("b", b"2"),
        lambda: store.put_if_match("b", b"4", '"0"'),
        lambda: store.put_stream("c", iter([bytes(PART_BYTES), b"end"]), PART_BYTES + 3),
    ):
        with pytest.raises(StorageError):
            write()
    store.verifies_uploads()
    asked = [one for one in proxy.seen if writes(one)]
    assert len(asked) >= 5
    assert {(one.headers.get(ALGORITHM), one.headers.get(KEY_ID)) for one in asked} == {("aws:kms", KEY)}


def test_without_the_setting_such_a_bucket_takes_nothing(proxy: FaultProxy) -> None:
    store = bucket(proxy, None)
    with pytest.raises(StorageError, match="AccessDenied"):
        store.put("a", b"1")
    with pytest.raises(StorageError):
        store.put_stream("c", iter([bytes(PART_BYTES), b"end"]), PART_BYTES + 3)
