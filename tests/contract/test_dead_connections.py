"""Connections that died, and stores that say nothing, or too slowly, or that they are asked too much."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.config.settings import BrokerConfig
from service.node.cold_tier import OFFLOAD_OPTIONS, reading_options
from service.remote.reading.reader import RemoteReader
from service.remote.stores.errors import ObjectTruncated, StoreThrottled, StoreUnavailable
from service.remote.stores.obstore_store import ObstoreStore, StoreOptions, open_store
from tests.contract.backends import REGION
from tests.support.faults import Fault, FaultProxy, fault_proxy
from tests.support.stores import ACCESS, SECRET, s3_client
from tests.support.world import WORLD
from tests.unit.remote.archive import TIP, Archive

BRISK = StoreOptions(
    connect_timeout_s=2, first_byte_timeout_s=0.5, request_timeout_s=3, read_retries=0, max_retries=0
)
HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100000\r\nContent-Range: bytes 0-99999/200000\r\n"
    b'ETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n'
)


@pytest.fixture
def proxy(moto_contract_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(moto_contract_endpoint) as found:
        yield found


def opened(endpoint: str, options: StoreOptions, bucket: str = "dead-connections") -> ObstoreStore:
    return open_store(
        f"s3://{bucket}/p", endpoint=endpoint, region=REGION, access_key_id=ACCESS, secret_access_key=SECRET,
        options=options, world=WORLD,
    )  # fmt: skip


def with_object(proxy: FaultProxy, size: int = 10) -> None:
    s3_client(f"http://{proxy.target}").create_bucket(Bucket="dead-connections")
    s3_client(f"http://{proxy.target}").put_object(
        Bucket="dead-connections", Key="p/k", Body=b"0123456789" * (size // 10)
    )


READS: dict[str, Callable[[Any], object]] = {
    "get": lambda store: store.get("k", max_size=10),
    "range": lambda store: bytes(store.get_range("k", 2, 3)),
    "suffix": lambda store: store.get_suffix("k", 3),
    "head": lambda store: store.head("k").size,
}


@pytest.mark.parametrize("name", READS)
def test_a_read_that_hears_nothing_ends_and_the_next_one_goes_by_another_connection(
    name: str, proxy: FaultProxy
) -> None:
    with_object(proxy)
    store = opened(proxy.endpoint, BRISK)
    wanted = READS[name](opened(proxy.endpoint, StoreOptions()))
    before = len(proxy.seen)
    proxy.mode = Fault.HANG
    with pytest.raises(StoreUnavailable, match="no answer"):
        READS[name](store)
    assert len(proxy.seen) == before + 1, "it is asked once; who repeats it is somebody else"
    proxy.plan = lambda seen: Fault.PASS  # the one that hangs goes on hanging
    assert patiently(lambda: READS[name](store)) == wanted


def patiently(read: Callable[[], object]) -> object:
    """A deadline that is short for a test may be missed by a machine that is busy."""
    for _ in range(30):
        try:
            return read()
        except StoreUnavailable as e:
            failure = e
    raise failure


class Server:
    """Answers every request with `answer`, which is given the connection."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self.over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        try:
            peer.recv(65536)
            self._answer(peer)
        except OSError:
            pass  # the client has hung up, as it should
        finally:
            peer.close()

    def close(self) -> None:
        self.over.set()
        self._listener.close()


def test_a_body_that_stops_and_one_that_drips_are_given_up() -> None:
    def stop(peer: socket.socket) -> None:
        peer.sendall(HEAD + b"some")
        server.over.wait(60)

    def drip(peer: socket.socket) -> None:
        peer.sendall(HEAD)
        while not server.over.wait(0.1):
            peer.sendall(b"x")

    for answer in (stop, drip):
        server = Server(answer)
        try:
            with pytest.raises(StoreUnavailable, match="no answer"):
                opened(server.endpoint, BRISK).get_range("k", 0, 100_000)
            assert not server.over.is_set()
        finally:
            server.close()


def test_the_nodes_own_deadlines_are_short() -> None:
    options = reading_options(BrokerConfig.from_properties({}))
    assert options.first_byte_timeout_s <= 2
    assert options.connect_timeout_s <= 2
    assert options.request_timeout_s <= 30
    assert (options.read_retries, options.max_retries) == (0, 0)
    assert OFFLOAD_OPTIONS.first_byte_timeout_s <= 4


def test_one_range_is_asked_for_as_often_as_the_reader_counts_where_the_store_throttles(
    proxy: FaultProxy,
) -> None:
    with_object(proxy)
    archive = Archive(opened(f"http://{proxy.target}", StoreOptions()))
    archive.add_segment(20)
    store = opened(proxy.endpoint, reading_options(BrokerConfig.from_properties({})))
    reader = RemoteReader(store, WORLD)
    try:
        assert reader.read(TIP, archive.manifest_key, 0, 1).result(30).data
        proxy.seen.clear()
        proxy.mode = Fault.SLOW_DOWN
        archive.add_segment(20)
        with pytest.raises(StoreThrottled):
            reader.read(TIP, archive.manifest_key, 0, 1).result(30)
    finally:
        reader.close()
    asked = Counter((seen.method, seen.path) for seen in proxy.seen)
    assert len(asked) == 1, "nothing but what was asked for, and no HEAD"
    assert max(asked.values()) <= 4


def test_a_head_is_sent_only_where_the_store_says_that_a_range_is_not_there(proxy: FaultProxy) -> None:
    with_object(proxy)
    store = opened(proxy.endpoint, StoreOptions(read_retries=0, max_retries=0))
    for fault in (Fault.FAIL, Fault.SLOW_DOWN, Fault.REFUSE, Fault.EXPIRED):
        proxy.mode = fault
        with pytest.raises(StoreUnavailable if fault is not Fault.EXPIRED else Exception):
            store.get_range("k", 0, 3)
    assert {seen.method for seen in proxy.seen} == {"GET"}
    proxy.mode = Fault.PASS
    with pytest.raises(ObjectTruncated):
        store.get_range("k", 500, 3)
    assert [seen.method for seen in proxy.seen].count("HEAD") == 1
