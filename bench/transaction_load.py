"""Load of transactional producers: librdkafka's (version 1), Java's (version 2), and raw ones."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from kio.schema.errors import ErrorCode

from bench.peers import Meters
from tests.support.isolation import COMMITTED, seen
from tests.support.java_clients import java
from tests.support.transactional_client import Place, TransactionalClient, settled
from tests.support.wire import RawConnection, decode_response, encode_request, schema

PRODUCERS = 8
RECORDS = 100
PARTITIONS = 4
WARM_S = 5


class Rate(NamedTuple):
    """Transactions of a second, and the brokers' CPU of one, in ms."""

    per_second: float
    cpu_ms: float


def java_rate(bootstrap: str, topic: str, pids: Sequence[int], seconds: int, folder: Path) -> Rate:
    """Java's client speaks version 2 where the cluster does."""
    shape = (str(PARTITIONS), str(PRODUCERS), str(RECORDS), str(seconds), str(WARM_S))
    process = java("TransactionLoad", bootstrap, topic, *shape, log=folder / "java.log")
    meters = Meters(pids)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n", (folder / "java.log").read_text()[-2000:]
        meters.begin()
        word, _, count = process.stdout.readline().partition(" ")
        cpu_s = meters.end()
        assert word == "end"
        process.wait(60)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.kill()
            process.wait(10)
    return Rate(int(count) / seconds, 1e3 * cpu_s / max(int(count), 1))


def confluent_rate(bootstrap: str, topic: str, pids: Sequence[int], seconds: int, _: Path) -> Rate:
    """librdkafka speaks version 1 alone."""
    over = threading.Event()
    counts = [0] * PRODUCERS
    threads = [
        threading.Thread(target=_commits, args=(bootstrap, topic, number, counts, over))
        for number in range(PRODUCERS)
    ]
    for one in threads:
        one.start()
    time.sleep(WARM_S)
    meters, before = Meters(pids), sum(counts)
    meters.begin()
    time.sleep(seconds)
    count, cpu_s = sum(counts) - before, meters.end()
    over.set()
    for one in threads:
        one.join()
    return Rate(count / seconds, 1e3 * cpu_s / max(count, 1))


def _commits(bootstrap: str, topic: str, number: int, counts: list[int], over: threading.Event) -> None:
    name = f"load-{number}"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 5}
    )
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    metadata = consumer.consumer_group_metadata()
    producer.init_transactions(60)
    value = b"x" * 100
    while not over.is_set():
        producer.begin_transaction()
        for record in range(RECORDS):
            producer.produce(topic, value, partition=record % PARTITIONS)
        place = confluent_kafka.TopicPartition(topic, 0, counts[number])
        producer.send_offsets_to_transaction([place], metadata, 60)
        producer.commit_transaction(60)
        counts[number] += 1
    consumer.close()


class Commit(NamedTuple):
    """Times of one paced commit, in ms: its EndTxn, and until a consumer has seen it."""

    end_ms: float
    seen_ms: float


def paced_commits(bootstrap: str, topic: str, per_second: float, count: int) -> list[Commit]:
    """Commit a record at a steady pace beside a read_committed consumer of its own connection."""
    arrivals: dict[int, float] = {}
    over = threading.Event()
    with TransactionalClient(bootstrap, f"paced-{topic}") as client:
        check(settled(client, client.init))
        consumer = threading.Thread(target=_consume, args=(client.leader((topic, 0)), topic, arrivals, over))
        consumer.start()
        ended: dict[int, tuple[float, float]] = {}
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(began + number / per_second - time.monotonic(), 0))
            answer = settled(client, partial(client.produce, topic, 0, [b"%d" % number]))
            check(answer.error_code)
            start = time.monotonic()
            check(settled(client, lambda: client.end(commit=True)))
            ended[number] = start, time.monotonic()
        time.sleep(1)
        over.set()
        consumer.join()
    lost = set(ended) - set(arrivals)
    assert not lost, f"{len(lost)} commits were not seen"
    return [
        Commit(1e3 * (end - start), 1e3 * (arrivals[number] - start))
        for number, (start, end) in ended.items()
    ]


def _consume(leader: str, topic: str, arrivals: dict[int, float], over: threading.Event) -> None:
    module, offset = schema(1, 12), 0
    with RawConnection(leader) as connection:
        while not over.is_set():
            part = module.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = module.FetchRequest(
                max_wait=timedelta(milliseconds=200), min_bytes=1, isolation_level=COMMITTED,
                topics=(module.FetchTopic(topic=topic, partitions=(part,)),), forgotten_topics_data=(),
            )  # fmt: skip
            answer = connection.call(request).responses[0].partitions[0]
            now = time.monotonic()
            for one in seen(bytes(answer.records or b"")):
                offset = one.last_offset + 1
                arrivals |= {int(value): now for value in one.values if value is not None}


def first_batches(client: TransactionalClient, places: Sequence[Place]) -> float:
    """Send the first batch of a transaction to each partition, to all leaders at once; return ms until the
    last answer, tried again as clients do; then commit."""
    left = list(places)
    began = time.monotonic()
    while left:
        by_leader: dict[str, list[Place]] = {}
        for place in left:
            by_leader.setdefault(client.leader(place), []).append(place)
        sent = []
        for leader, led in by_leader.items():
            request = client._produce_request(
                led, dict.fromkeys(led, (b"first",)), time.time_ns() // 1_000_000
            )
            connection = client._connection(leader)
            connection.send_frame(encode_request(request))
            sent.append((connection, request))
        left = []
        for connection, request in sent:
            for topic in decode_response(request, connection.receive_frame()).responses:
                for one in topic.partition_responses:
                    if one.error_code == ErrorCode.none:
                        client.sequences[topic.name, one.index] = 1
                    else:
                        left.append((topic.name, one.index))
        if left:
            time.sleep(0.02)
    took_ms = 1e3 * (time.monotonic() - began)
    check(settled(client, lambda: client.end(commit=True)))
    return took_ms


def fill(bootstrap: str, topic: str, megabytes: int, *, aborted_in: int = 0, is_plain: bool = False) -> None:
    """Fill a partition by transactions of 100 batches of 10 KB; one in `aborted_in` is aborted."""
    values = [b"x" * 1000] * 10
    with TransactionalClient(bootstrap, f"fill-{topic}") as client:
        check(settled(client, client.init))
        if is_plain:
            _fill_plain(client.leader((topic, 0)), topic, megabytes, values)
            return
        for number in range(megabytes):
            for _ in range(100):
                check(settled(client, lambda: client.produce(topic, 0, values)).error_code)
            is_commit = not aborted_in or number % aborted_in != 0
            check(settled(client, partial(client.end, commit=is_commit)))


def _fill_plain(leader: str, topic: str, megabytes: int, values: Sequence[bytes]) -> None:
    from tests.support.batches import batch
    from tests.support.wire import produce

    records = batch(values, base_timestamp=time.time_ns() // 1_000_000)
    with RawConnection(leader) as connection:
        for _ in range(100 * megabytes):
            check(produce(connection, topic, 0, records).error_code)


def read_all(leader: str, topic: str, isolation: int, end: int) -> float:
    """Fetch a partition to its end, a MiB at a time, and return the rate in MB/s of what came."""
    module, offset, size = schema(1, 12), 0, 0
    with RawConnection(leader) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        began = time.monotonic()
        while offset < end:
            part = module.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = module.FetchRequest(
                max_wait=timedelta(0), min_bytes=1, isolation_level=isolation,
                topics=(module.FetchTopic(topic=topic, partitions=(part,)),), forgotten_topics_data=(),
            )  # fmt: skip
            answer = connection.call(request).responses[0].partitions[0]
            check(answer.error_code)
            records = bytes(answer.records or b"")
            assert records, "nothing came"
            size += len(records)
            offset = _next_offset(records)
        return size / 1e6 / (time.monotonic() - began)


def _next_offset(records: bytes) -> int:
    """The offset behind the last whole batch."""
    position, found = 0, -1
    while position + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > len(records):
            break
        found = base + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += 12 + length
    assert found >= 0
    return int(found)


@contextlib.contextmanager
def commits_in_a_row(bootstrap: str, topic: str) -> Iterator[Callable[[], float]]:
    """One commit after the other for as long as this lasts; the call returns the longest pause since the last
    call, in ms."""
    over, ends = threading.Event(), [time.monotonic()]

    def go_on() -> None:
        with TransactionalClient(bootstrap, f"row-{topic}") as client:
            number, is_new = 0, True
            while not over.is_set():
                number += 1
                with contextlib.suppress(AssertionError, OSError):
                    if is_new:
                        check(settled(client, client.init))
                    is_new = True  # but for what follows, it has to begin anew
                    answer = settled(client, partial(client.produce, topic, 0, [b"%d" % number]))
                    check(answer.error_code)
                    check(settled(client, lambda: client.end(commit=True)))
                    is_new = False
                    ends.append(time.monotonic())

    def longest() -> float:
        now = [*ends, time.monotonic()]
        found = max(after - before for before, after in pairwise(now))
        ends[:] = ends[-1:]
        return 1e3 * found

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield longest
    finally:
        over.set()
        thread.join()


def make_ids(bootstrap: str, count: int, timeout_ms: int, *, topic: str | None = None, at: int = 64) -> None:
    """InitProducerId of so many ids; each opens a transaction where a `topic` is given."""
    numbers = iter(range(count))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def some() -> None:
        try:
            with TransactionalClient(bootstrap, "") as client:
                client.timeout_ms = timeout_ms
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    client.transactional_id = f"id-{number:07}"
                    client.sequences.clear()
                    check(settled(client, client.init))
                    if topic is not None:
                        answer = settled(client, lambda: client.produce(topic, 0, [b"open"]))
                        check(answer.error_code)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=some) for _ in range(min(at, count))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failures:
        raise failures[0]


def check(code: Any) -> None:
    assert code == ErrorCode.none, ErrorCode(code)


def abort_many(bootstrap: str, topic: str, count: int, at: int = 32) -> None:
    """Abort so many transactions of a record each, of several producers at once."""
    left = iter(range(count))
    lock = threading.Lock()

    def some(name: int) -> None:
        with TransactionalClient(bootstrap, f"abort-{topic}-{name}") as client:
            check(settled(client, client.init))
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                check(settled(client, lambda: client.produce(topic, 0, [b"aborted"])).error_code)
                check(settled(client, lambda: client.end(commit=False)))

    threads = [threading.Thread(target=some, args=(name,)) for name in range(at)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def fetch_times(leader: str, topic: str, offset: int, count: int) -> list[float]:
    """Times of so many fetches of 64 KiB at an offset, isolation 1, in ms."""
    module = schema(1, 12)
    part = module.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 16)
    request = module.FetchRequest(
        max_wait=timedelta(0), min_bytes=1, isolation_level=COMMITTED,
        topics=(module.FetchTopic(topic=topic, partitions=(part,)),), forgotten_topics_data=(),
    )  # fmt: skip
    frame, times = encode_request(request), []
    with RawConnection(leader) as connection:
        for _ in range(count):
            began = time.monotonic()
            connection.send_frame(frame)
            connection.receive_frame()
            times.append(1e3 * (time.monotonic() - began))
    return times
