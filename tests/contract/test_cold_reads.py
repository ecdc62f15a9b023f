"""The cold reader over every real store, and what S3 says when it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.remote.reading.object_reader import open_footer, open_footer_of
from service.remote.reading.reader import RemoteReader
from service.remote.stores.errors import StoreRefused
from service.remote.stores.obstore_store import open_store
from tests.contract.backends import REGION, Backend, options
from tests.support.stores import ACCESS, SECRET
from tests.support.world import WORLD
from tests.unit.remote.archive import TIP, Archive


def test_archived_records_are_read_back_through_every_store(backend: Backend) -> None:
    archive = Archive(backend.store, block_bytes=64 << 10)
    entries = [archive.add_segment(60, value_bytes=1_500, epoch=epoch) for epoch in range(4)]
    reader = RemoteReader(backend.store, WORLD, threads=3, cache_bytes=4 << 20, chunk_bytes=256 << 10)
    try:
        offset, got = 0, bytearray()
        while offset < archive.next_offset:
            read = reader.read(TIP, archive.manifest_key, offset, 200_000).result(30)
            got += b"".join(read.data)
            offset = read.next_offset
        assert got == archive.log
        found = reader.offset_for_timestamp(TIP, archive.manifest_key, archive.timestamp - 1_000).result(30)
        assert found is not None
        assert found.offset == archive.next_offset - 5
    finally:
        reader.close()
    for entry in entries:
        assert open_footer(backend.store, entry.key) == open_footer_of(backend.store, entry)


@pytest.mark.parametrize("server", ["moto", pytest.param("versitygw", marks=pytest.mark.versitygw)])
def test_a_bucket_that_does_not_exist_is_a_refusal(server: str, request: pytest.FixtureRequest) -> None:
    endpoint = request.getfixturevalue(f"{server}_contract_endpoint")
    store = open_store(
        "s3://no-such-bucket-here/p",
        endpoint=endpoint,
        region=REGION,
        access_key_id=ACCESS,
        secret_access_key=SECRET,
        options=options(),
        world=WORLD,
    )
    for call in (
        lambda: store.get("k", max_size=10),
        lambda: store.get_range("k", 0, 10),
        lambda: store.put("k", b"x"),
        lambda: store.put_stream("k", iter([b"x" * (6 << 20)]), 6 << 20),
        lambda: store.put_if_absent("k", b"x"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StoreRefused):
            call()


@pytest.mark.versitygw
def test_wrong_credentials_are_a_refusal(versitygw_contract_endpoint: str) -> None:
    for key, secret in ((ACCESS, "wrong"), ("nobody", SECRET)):
        store = open_store(
            "s3://some-bucket/p",
            endpoint=versitygw_contract_endpoint,
            region=REGION,
            access_key_id=key,
            secret_access_key=secret,
            options=options(),
            world=WORLD,
        )
        with pytest.raises(StoreRefused):
            store.get("k", max_size=10)
        with pytest.raises(StoreRefused):
            store.put("k", b"x")


def test_credentials_and_region_may_come_from_the_environment(moto_contract_endpoint: str) -> None:
    from tests.support.stores import s3_client

    s3_client(moto_contract_endpoint).create_bucket(Bucket="from-the-environment")
    environ = {"AWS_ENDPOINT_URL": moto_contract_endpoint, "AWS_REGION": REGION, "HOME": "/nonexistent"}
    store = open_store(
        "s3://from-the-environment",
        access_key_id=ACCESS,
        secret_access_key=SECRET,
        options=options(),
        world=replace(WORLD, environ=environ),
    )
    store.put("k", b"x")
    assert store.get("k", max_size=1) == b"x"
