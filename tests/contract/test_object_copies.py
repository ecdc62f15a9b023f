"""Copies of objects between prefixes: by the store itself, within a bucket and between two."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from service.inspect.object_copies import copier_of
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import open_store
from tests.support.faults import fault_proxy
from tests.support.stores import CREDENTIALS, s3_client
from tests.support.world import WORLD

SERVERS = ["moto", pytest.param("versitygw", marks=pytest.mark.versitygw)]
DATA = b"segment" * 1_000


@pytest.fixture(params=SERVERS)
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    found: str = request.getfixturevalue(f"{request.param}_contract_endpoint")
    return found


@pytest.mark.parametrize("is_same_bucket", [True, False])
def test_the_store_copies_and_no_byte_comes_here(endpoint: str, is_same_bucket: bool) -> None:
    one, other = (f"firn-{uuid.uuid4()}" for _ in range(2))
    for name in (one, other):
        s3_client(endpoint).create_bucket(Bucket=name)
    from_url = f"s3://{one}/lost/cluster"
    to_url = f"s3://{one}/heir" if is_same_bucket else f"s3://{other}/heir"
    with fault_proxy(endpoint) as proxy:
        source = open_store(from_url, world=WORLD, endpoint=endpoint, region="us-east-1")
        target = open_store(to_url, world=WORLD, endpoint=endpoint, region="us-east-1")
        source.put("data/x.seg", DATA)
        copies = copier_of(
            from_url,
            to_url,
            source,
            target,
            WORLD,
            dict(os.environ),
            endpoint=proxy.endpoint,
            region="us-east-1",
            encryption=None,
            say=print,
        )
        with copies as copy:
            copy("data/x.seg", len(DATA))
            with pytest.raises(ObjectNotFound):
                copy("data/gone.seg", 5)
        assert all(seen.method == "PUT" for seen in proxy.seen)
    assert target.get("data/x.seg", max_size=1 << 20) == DATA
    assert source.get("data/x.seg", max_size=1 << 20) == DATA


@pytest.mark.parametrize("size", [0, 1, 20 << 20])
def test_bytes_pass_through_here_between_stores_of_two_kinds(tmp_path: Path, size: int) -> None:
    old, new = ((tmp_path / name).as_uri() for name in ("lost", "heir"))
    source, target = (open_store(url, world=WORLD) for url in (old, new))
    data = bytes(size)
    source.put("data/x.seg", data)
    copies = copier_of(
        old, new, source, target, WORLD, {}, endpoint=None, region=None, encryption=None, say=print
    )
    with copies as copy:
        copy("data/x.seg", size)
    assert target.get("data/x.seg", max_size=1 << 30) == data
