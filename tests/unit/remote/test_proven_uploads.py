"""Uploads compared with what arrived, and how a store is asked whether it does that itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pytest

from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.proven_uploads import WINDOW_BYTES, ProvenUploads, UploadDamaged
from service.remote.stores.s3_damage import Keys, signed_headers


class FlippingStore(MemoryStore):
    """Flips one bit of what it is given, as `damage` says; no bit where that is None."""

    def __init__(self) -> None:
        super().__init__(SystemThreads())
        self.damage: int | None = None
        self.reads = 0

    def _store(self, key: str, data: bytes) -> None:
        if self.damage is not None:
            at = self.damage % len(data)
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        super()._store(key, data)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.reads += 1
        return super().get_range(key, start, length)


def cut(data: bytes, size: int) -> Iterable[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("at", [0, WINDOW_BYTES - 1, WINDOW_BYTES, 2 * WINDOW_BYTES, -1])
def test_one_flipped_bit_anywhere_is_noticed(at: int) -> None:
    inner = FlippingStore()
    store = ProvenUploads(inner, lambda: False)
    data = bytes(2 * WINDOW_BYTES + 5)
    store.put_stream("k", cut(data, 3_000_001), len(data))
    inner.damage = at
    window = at % len(data) // WINDOW_BYTES * WINDOW_BYTES
    with pytest.raises(UploadDamaged, match=f"from byte {window} on"):
        store.put_stream("k", cut(data, 3_000_001), len(data))


def test_every_way_to_write_is_compared() -> None:
    inner = FlippingStore()
    store = ProvenUploads(inner, lambda: False)
    store.put("k", b"before")
    tag = store.get_tagged("k", max_size=10).tag
    inner.damage = 3
    writes: list[Callable[[], object]] = [
        lambda: store.put("new", b"data"),
        lambda: store.put_if_absent("newer", b"data"),
        lambda: store.put_if_match("k", b"data", tag),
    ]
    for write in writes:
        with pytest.raises(UploadDamaged):
            write()


def test_nothing_is_read_back_from_a_store_that_compares() -> None:
    inner = FlippingStore()
    ProvenUploads(inner, lambda: True).put_stream("k", [b"data"], 4)
    assert inner.reads == 0
    ProvenUploads(inner, lambda: False).put_stream("k", [b"data"], 4)
    assert inner.reads == 1


def test_a_request_is_signed_as_in_the_example_of_aws() -> None:
    """Amazon S3 API Reference, "Authenticating Requests: Using the Authorization Header", example 2."""
    headers = signed_headers(
        "PUT",
        "examplebucket.s3.amazonaws.com",
        "/test%24file.text",
        "us-east-1",
        Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None),
        datetime(2013, 5, 24, tzinfo=UTC),
        b"Welcome to Amazon S3.",
        (("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")),
    )
    assert headers["authorization"].endswith(
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )
