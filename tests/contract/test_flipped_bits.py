"""A bit flipped on the way to the store: the upload is refused, by the store or by us, and repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.obstore_store import ObstoreStore
from service.remote.stores.proven_uploads import ProvenUploads, UploadDamaged
from tests.contract.backends import PART_BYTES, Backend, folder_backend, s3_backend
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy

SIZE = 2 * PART_BYTES + 1000
DATA = bytes(range(256)) * (SIZE // 256 + 1)


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.versitygw)])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(request: pytest.FixtureRequest, name: str) -> Iterator[FaultProxy]:
    with fault_proxy(request.getfixturevalue(f"{name}_contract_endpoint")) as found:
        yield found


@pytest.fixture
def backend(proxy: FaultProxy, name: str) -> Backend:
    return s3_backend(name, proxy.endpoint)


def opened(backend: Backend) -> ObstoreStore:
    assert isinstance(backend.store, ObstoreStore)
    return backend.store


def parts() -> Iterator[bytes]:
    for start in range(0, SIZE, 1_000_000):
        yield DATA[start : min(start + 1_000_000, SIZE)]


def test_a_probe_finds_whether_a_store_verifies_uploads(backend: Backend, name: str) -> None:
    assert opened(backend).verifies_uploads() is (name == "versitygw")
    assert list(backend.store.list("")) == [], "what it was asked with is gone"


def test_a_folder_and_a_store_that_does_not_answer_are_compared_with(tmp_path: Path) -> None:
    assert opened(folder_backend(tmp_path)).verifies_uploads() is False


def test_a_store_that_was_away_is_probed_again(backend: Backend, proxy: FaultProxy, name: str) -> None:
    proxy.mode = Fault.REFUSE
    assert opened(backend).verifies_uploads() is False
    proxy.mode = Fault.PASS
    assert opened(backend).verifies_uploads() is (name == "versitygw")


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_flipped_part_is_refused_and_the_next_try_arrives(
    backend: Backend, proxy: FaultProxy, part: int
) -> None:
    store = ProvenUploads(backend.store, opened(backend).verifies_uploads)
    store.put("first", b"so that it is known what the store does")
    sent = sum(seen.method == "PUT" for seen in proxy.seen)

    def flip(seen: Seen) -> Fault:
        is_part = seen.method == "PUT" and f"partNumber={part}&" in seen.path
        return Fault.FLIP if is_part and seen.number <= sent + 3 else Fault.PASS

    proxy.plan = flip
    with pytest.raises(StoreUnavailable):
        store.put_stream("k", parts(), SIZE)
    assert proxy.failed == 1
    proxy.plan = None
    store.put_stream("k", parts(), SIZE)
    assert store.get("k", max_size=SIZE) == DATA[:SIZE]


def test_a_flipped_object_is_refused(backend: Backend, proxy: FaultProxy) -> None:
    store = ProvenUploads(backend.store, opened(backend).verifies_uploads)
    store.put("k", b"as it was")
    tag = store.get_tagged("k", max_size=100).tag
    proxy.plan = lambda seen: Fault.FLIP if seen.method == "PUT" else Fault.PASS
    for put in (
        lambda: store.put_if_match("k", b"as it is", tag),
        lambda: store.put("k", b"as it is"),
        lambda: store.put_if_absent("new", b"as it is"),
        lambda: store.put_stream("small", iter([b"as it is"]), 8),
    ):
        with pytest.raises(StoreUnavailable):
            put()


def test_without_a_comparison_some_stores_take_what_arrives(
    backend: Backend, proxy: FaultProxy, name: str
) -> None:
    """Why there is one."""
    proxy.plan = lambda seen: Fault.FLIP if seen.method == "PUT" else Fault.PASS
    with nullcontext() if name == "moto" else pytest.raises(StoreUnavailable):
        backend.store.put("k", b"as it is")
        assert backend.store.get("k", max_size=100) != b"as it is"


def test_an_upload_that_cannot_be_read_back_does_not_count(
    backend: Backend, proxy: FaultProxy, name: str
) -> None:
    if name != "moto":
        pytest.skip("this store is not read back from")
    store = ProvenUploads(backend.store, opened(backend).verifies_uploads)
    store.put("first", b"x")
    proxy.plan = lambda seen: Fault.FAIL if seen.method == "GET" else Fault.PASS
    with pytest.raises(StoreUnavailable) as caught:
        store.put_stream("k", parts(), SIZE)
    assert not isinstance(caught.value, UploadDamaged)
