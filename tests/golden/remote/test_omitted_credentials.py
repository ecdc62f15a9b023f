"""A `cluster.json` that names a copy of the metadata without users' credentials."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.remote.format.documents import seal
from service.remote.format.keys import MetadataKey, metadata_key
from service.remote.format.manifest_codec import ClusterFile, decode_cluster, encode_cluster
from service.remote.format.metadata_ref import MetadataRef

KEY = metadata_key(MetadataKey(64, 3, UUID(int=400)))
CLUSTER = ClusterFile("golden-cluster", None, MetadataRef(KEY, 64, 3, 3702, 4272393887, omitted_users=3))
DOCUMENT = (
    b'{"format":"firn-cluster","format_version":2,"layout_version":2,"cluster_id":"golden-cluster",'
    b'"metadata":{"key":"metadata/00000000000000000064-0000000003-00000000-0000-0000-0000-000000000190.checkpoint",'
    b'"end_offset":64,"epoch":3,"size":3702,"crc32c":4272393887,"omitted_users":3,"credentials":"omitted"}'
)


def test_the_document_says_that_credentials_are_omitted_and_of_how_many_users() -> None:
    data = encode_cluster(CLUSTER)
    assert data.startswith(DOCUMENT + b',"document_crc32c":')
    assert decode_cluster(data) == CLUSTER


def test_nothing_is_said_where_nothing_was_omitted() -> None:
    assert CLUSTER.metadata is not None
    whole = CLUSTER._replace(metadata=CLUSTER.metadata._replace(omitted_users=0))
    data = encode_cluster(whole)
    assert b"credentials" not in data
    assert b"omitted" not in data
    assert decode_cluster(data) == whole


def test_settings_that_are_passwords_are_counted_of_their_own() -> None:
    assert CLUSTER.metadata is not None
    some = CLUSTER._replace(metadata=CLUSTER.metadata._replace(omitted_users=0, omitted_settings=2))
    data = encode_cluster(some)
    assert b'"crc32c":4272393887,"omitted_settings":2,"credentials":"omitted"}' in data
    assert decode_cluster(data) == some


@pytest.mark.parametrize("users", [-1, 1 << 60, "3", None])
def test_a_number_of_users_that_cannot_be_is_damage(users: object) -> None:
    metadata = {"key": KEY, "end_offset": 64, "epoch": 3, "size": 1, "crc32c": 0, "omitted_users": users}
    fields = {
        "format": "firn-cluster",
        "format_version": 2,
        "layout_version": 2,
        "cluster_id": "golden-cluster",
        "metadata": metadata,
    }
    with pytest.raises(CorruptionError):
        decode_cluster(seal(fields))
