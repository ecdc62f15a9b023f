"""Uploads that break off while the store answers badly, too: the caller learns what came first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.base.errors import CorruptionError
from service.remote.stores.errors import StoreUnavailable
from tests.contract.backends import PART_BYTES, Backend, s3_backend
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy

SIZE = 4 * PART_BYTES


class Broken(Exception):
    """What a caller's iterator raises."""


@pytest.fixture
def proxy(moto_contract_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(moto_contract_endpoint) as found:
        yield found


@pytest.fixture
def backend(proxy: FaultProxy) -> Backend:
    return s3_backend("moto", proxy.endpoint)


def broken_parts() -> Iterator[bytes]:
    yield b"x" * (2 * PART_BYTES)
    raise Broken("the disk is gone")


@pytest.mark.parametrize("fault", [Fault.LIE, Fault.FAIL_AFTER])
def test_an_abort_whose_first_answer_is_lost_hides_nothing(
    proxy: FaultProxy, backend: Backend, fault: Fault
) -> None:
    proxy.plan = lambda seen: fault if (seen.method, seen.number) == ("DELETE", 1) else Fault.PASS
    with pytest.raises(Broken):
        backend.store.put_stream("k", broken_parts(), SIZE)
    assert proxy.failed == 1
    assert backend.unfinished_uploads() == []


def test_an_abort_that_fails_is_a_note_to_what_broke_the_upload(proxy: FaultProxy, backend: Backend) -> None:
    proxy.plan = lambda seen: Fault.FAIL if seen.method == "DELETE" else Fault.PASS
    with pytest.raises(Broken) as e:
        backend.store.put_stream("k", broken_parts(), SIZE)
    (note,) = e.value.__notes__
    assert note.startswith("the upload may not be aborted: k: ")
    assert backend.unfinished_uploads() == ["some/prefix/k"]


def test_a_wrong_size_is_told_also_when_the_abort_fails(proxy: FaultProxy, backend: Backend) -> None:
    proxy.plan = lambda seen: Fault.FAIL if seen.method == "DELETE" else Fault.PASS
    with pytest.raises(CorruptionError, match="announced"):
        backend.store.put_stream("k", iter([b"x" * SIZE]), SIZE + 1)


def test_a_part_that_fails_can_be_tried_again_also_when_the_abort_is_confirmed_late(
    proxy: FaultProxy, backend: Backend
) -> None:
    def plan(seen: Seen) -> Fault:
        if seen.method == "PUT" and "partNumber=2" in seen.path:
            return Fault.FAIL
        return Fault.LIE if (seen.method, seen.number) == ("DELETE", 1) else Fault.PASS

    proxy.plan = plan
    with pytest.raises(StoreUnavailable):
        backend.store.put_stream("k", iter([b"x" * SIZE]), SIZE)
    assert backend.unfinished_uploads() == []
    proxy.plan = None
    backend.store.put_stream("k", iter([b"x" * SIZE]), SIZE)
    assert backend.store.head("k").size == SIZE
