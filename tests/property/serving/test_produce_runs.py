"""Requests that are handled as runs leave the same answers, logs, producers and counters as one by one."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from datetime import timedelta
from errno import EIO, ENOSPC
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from service.base.disk import DiskError
from service.config.settings import LogConfig
from service.network.request import RequestContext, Response
from service.partition.partition import Partition
from service.records import produce_kernel
from service.records.compression import decompress
from service.records.produced_run import RunTaker
from service.security.session import anonymous
from service.serving import produce_runs
from service.serving.api_table import BROKER_APIS
from service.serving.dispatch import Dispatcher
from service.serving.produce_runs import ProduceRuns
from service.wire.errors import WireError
from tests.support.batches import batch, record
from tests.support.kernels import interpreted
from tests.support.one_of_three import ME, OTHER, OUTSIDE, TOPIC, OneOfThree, one_of_three, partition, topic
from tests.support.wire import decode_response, encode_request, schema
from tests.unit.hot.logs import START_MS

WORLD: Final = (topic(), *(partition(n, ME) for n in range(2)), partition(2, OTHER))
CONFIGS: Final = (
    LogConfig(),
    LogConfig(segment_bytes=20_000),
    LogConfig(index_interval_bytes=300, flush_messages=50),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(cleanup_policy="compact"),
    LogConfig(compression_type="lz4"),
    LogConfig(compression_type="uncompressed", max_message_bytes=300),
    LogConfig(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=10),
)


class Client:
    """Draws requests as one connection sends them; `random` chooses."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sequences: dict[tuple[int, int, int], int] = {}
        self.sent: list[bytes] = []
        self.number = 0

    def batch(self, index: int) -> bytes:
        draw = self.random
        values: list[bytes | None] = [
            draw.choice([bytes(draw.randrange(120)), None]) for _ in range(draw.choice([1, 1, 1, 2, 7]))
        ]
        own: dict[str, Any] = {"base_timestamp": START_MS + draw.choice([0, 0, 0, 1, 5, -5, 11, -11])}
        if draw.random() < 0.5:
            key = (index, draw.choice([7, 8]), draw.choice([0, 0, 0, 1]))
            sequence = self.sequences.get(key, draw.choice([0, 0, 2**31 - 3]))
            own.update(producer_id=key[1], producer_epoch=key[2], base_sequence=sequence)
            self.sequences[key] = (sequence + len(values)) & 0x7FFFFFFF
        match draw.randrange(60):
            case 0:
                own["crc"] = 1
            case 1:
                own["codec"] = draw.randrange(1, 5)
            case 2:
                own["attributes"] = draw.choice([5, 8, 16, 32, 64, 256])
            case 3:
                own["base_offset"] = 1
            case 4:
                own["count"] = draw.choice([0, len(values) + 1, -1])
            case 5:
                own["max_timestamp"] = draw.choice([START_MS + 3, -1, -2])
            case 6:
                own["payload"] = record(0, b"x") + b"x"
                values = [b""]
            case 7:
                own["magic"] = draw.choice([0, 1, 3])
            case 8:
                own["base_sequence"] = -1
            case 9:
                own["base_timestamp"] = -1
            case 10:
                values = [bytes(draw.choice([400, 20_000]))]
            case 11:
                own["last_offset_delta"] = 3
        return batch(values, **own)

    def request(self, version: int, index: int, acks: int) -> bytes:
        draw = self.random
        module = schema(0, version)
        records: bytes | None = self.batch(index)
        match draw.randrange(60):
            case 0:
                records = None
            case 1:
                assert records is not None
                records += self.batch(index)
            case 2:
                index = draw.choice([2, 9, -1])
            case 3:
                acks = draw.choice([0, 2])
        data = module.PartitionProduceData(index=index, records=records)
        datas = (data, data) if draw.randrange(80) == 0 else (data,)
        topics = tuple(self.topic(version, module, datas) for _ in range(2 if draw.randrange(80) == 0 else 1))
        name = None if draw.randrange(60) else "transactional"
        whole = module.ProduceRequest(
            transactional_id=name, acks=acks, timeout=timedelta(seconds=1), topic_data=topics
        )
        self.number += 1
        body = encode_request(whole, self.number, draw.choice(["a", "a", "a", "b"]))
        return len(body).to_bytes(4) + body

    def topic(self, version: int, module: Any, data: Any) -> Any:
        if version >= 13:
            return module.TopicProduceData(topic_id=TOPIC, partition_data=data)
        return module.TopicProduceData(name="t", partition_data=data)

    def stream(self) -> bytes:
        """What arrives at once."""
        draw = self.random
        version, index, acks = draw.randrange(3, 14), draw.randrange(2), draw.choice([1, 1, -1])
        made = bytearray()
        for _ in range(draw.randrange(1, 30)):
            if draw.randrange(15) == 0:
                version, index, acks = draw.randrange(3, 14), draw.randrange(2), draw.choice([1, -1, 0])
            if self.sent and draw.randrange(30) == 0:
                one = draw.choice(self.sent)  # sent again
            else:
                one = self.request(version, index, acks)
                self.sent.append(one)
            if draw.randrange(15) == 0:  # damaged, but for its size
                damaged = bytearray(one)
                damaged[draw.randrange(4, len(one))] ^= 1 << draw.randrange(8)
                one = bytes(damaged)
            made += one
        return bytes(made)


class Side:
    """A broker that gets what a client sends."""

    def __init__(self, node: OneOfThree, *, in_runs: bool) -> None:
        self.node = node
        self.handler = Dispatcher(node.broker, BROKER_APIS)
        self.runs = ProduceRuns(node.broker) if in_runs else None
        self.in_runs = 0
        session = anonymous("127.0.0.1", OUTSIDE)
        self.context = RequestContext(1, "127.0.0.1", 50_000, OUTSIDE, session)

    async def take(self, data: bytes) -> list[bytes | str]:
        """The responses, one behind the other between the errors that end a connection."""
        found: list[bytes | str] = [b""]
        view, at = memoryview(bytearray(data)), 0
        while at < len(data):
            run = self.runs(self.context, view, at, len(data)) if self.runs is not None else None
            if run is not None:
                assert run.requests > 0
                self.in_runs += run.requests
                found[-1] = bytes_of(found[-1]) + b"".join(map(bytes_of, run.answers))
                at = run.stop
                continue
            stop = at + 4 + int.from_bytes(view[at : at + 4])
            try:
                answer: Any = self.handler(self.context, memoryview(bytearray(view[at + 4 : stop])))
                if isinstance(answer, Awaitable):
                    answer = await answer
            except WireError as e:
                found += [type(e).__name__, b""]
            else:
                if isinstance(answer, Response):
                    found[-1] = bytes_of(found[-1]) + b"".join(bytes_of(one) for one in answer.parts)
            at = stop
        return found

    def state(self) -> tuple[object, ...]:
        """All that may differ afterwards."""
        metrics = self.node.broker.metrics
        counted = metrics.appended_batches, metrics.appended_records, metrics.appended_bytes
        return [self.of(self.partition(index)) for index in range(2)], counted, metrics.errors

    def partition(self, index: int) -> Partition:
        found = self.node.broker.replicas.get_by("t", index)
        assert found is not None
        return found

    def of(self, one: Partition) -> object:
        log = one.log.state
        producers = {
            number: (entry.epoch, entry.last_timestamp, entry.batches, entry.txn_first_offset)
            for number, entry in log.producers
        }
        segments = [
            (segment.base_offset, segment.size, segment.max_timestamp, segment.max_timestamp_offset,
             *(handle.path.read_bytes() for handle in segment.handles))
            for segment in log.segments
        ]  # fmt: skip
        traffic = one.traffic.produced_bytes, one.traffic.produced_records
        return (
            log.end_offset, log.segments.size, one.high_watermark, one.last_stable_offset,
            log.producers.end_offset, producers, segments, traffic,
        )  # fmt: skip


def bytes_of(part: object) -> bytes:
    assert isinstance(part, bytes | bytearray | memoryview)
    return bytes(part)


async def both(seed: int) -> int:
    """Send the same to a broker with runs and to one without; return how many requests came in runs."""
    client = Client(seed)
    async with AsyncExitStack() as stack:
        sides = []
        for in_runs in (True, False):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            node = await stack.enter_async_context(one_of_three(folder, *WORLD))
            sides.append(Side(node, in_runs=in_runs))
        config = client.random.choice(CONFIGS)
        for side in sides:
            side.partition(0).configure(config)
        for _ in range(8):
            data = client.stream()
            taken = [await side.take(data) for side in sides]
            assert taken[0] == taken[1]
            assert sides[0].state() == sides[1].state()
        return sides[0].in_runs


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_runs_leave_what_single_requests_leave(seed: int) -> None:
    asyncio.run(both(seed))


@pytest.mark.parametrize("seed", range(3))
def test_most_ordinary_requests_come_in_runs(seed: int) -> None:
    assert asyncio.run(both(seed)) > 20


LIVES: Final = [
    produce_kernel,
    *(interpreted(with_cython=found)["produce_kernel"] for found in (True, False)),
]


@given(
    seed=st.integers(0, 2**32),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 400) | st.just(0),
    rooms=st.tuples(st.integers(0, 9), st.sampled_from([0, 200, 2000]), st.sampled_from([0, 100, 2000])),
)
@settings(max_examples=200, deadline=None)
def test_the_kernel_is_the_same_compiled_or_not(
    seed: int, edits: list[tuple[int, int]], cut: int, rooms: tuple[int, int, int]
) -> None:
    data = bytearray(Client(seed).stream())
    for at, byte in edits:
        data[at % min(len(data), 400)] = byte
    data = data[: max(1, len(data) - cut)]
    bounds = array("q", (rooms[0], 350, START_MS - 10, START_MS + 10, 2**40, 3, 20))
    found: list[Any] = []
    for life in LIVES:
        head = array("q", bytes(8 * produce_kernel.HEAD_FIELDS))
        if not life.read_head(data, 0, len(data), head):
            found.append(None)
            continue
        rows = array("q", bytes(8 * produce_kernel.ROW_FIELDS * rooms[0]))
        batches, answers = bytearray(rooms[1]), bytearray(rooms[2])
        count = life.take_run(data, 0, len(data), head[0], bounds, bytes(range(40)), batches, answers, rows)
        found.append((count, head, rows, batches, answers))
    assert found[1:] == found[:-1]


def test_a_run_is_stamped_and_answered() -> None:
    frames = []
    for number, value in enumerate((b"one", b"two")):
        module = schema(0, 9)
        data = module.PartitionProduceData(index=1, records=batch([value], base_timestamp=START_MS + number))
        named = module.TopicProduceData(name="t", partition_data=(data,))
        asked = module.ProduceRequest(
            transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=(named,)
        )
        body = encode_request(asked, 70 + number, "me")
        frames.append(len(body).to_bytes(4) + body)
    stream = b"".join(frames) + frames[0][:-1]
    taker = RunTaker()
    # size, key and version, correlation id, client id, tags, no transactional id, acks, timeout, one topic
    # "t", one partition, its index
    head = taker.head(stream, 0, len(stream))
    assert head is not None
    assert head[:2] == array("q", (4 + 4 + 4 + 4 + 1 + 1 + 2 + 4 + 1 + 2 + 1 + 4, 9))
    rules = array("q", (256, 1000, START_MS, START_MS + 1, 500, 3, 8))
    taken = taker.take(stream, 0, len(stream), 32, rules, bytes(16))
    assert taken is not None
    run, stop, answers = taken
    assert (run.batches, run.base_offset, run.last_offset, run.newest) == (2, 500, 501, (START_MS + 1, 501))
    assert stop == len(frames[0]) + len(frames[1])
    assert answers == b"".join(
        bytes(4) + number.to_bytes(4) + offset.to_bytes(8) for number, offset in ((70, 500), (71, 501))
    )
    stamped = [
        bytearray(batch([value], base_offset=500 + number, base_timestamp=START_MS + number, leader_epoch=3))
        for number, value in enumerate((b"one", b"two"))
    ]
    assert run.data == b"".join(stamped)
    assert not run.has_producer


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_disk_that_refuses_leaves_nothing_behind_and_takes_the_same_later(size: int) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            node = await stack.enter_async_context(one_of_three(folder, *WORLD))
            side, module = Side(node, in_runs=True), schema(0, 9)
            frames = []
            for number in range(4):
                records = batch(
                    [bytes(size)], base_timestamp=START_MS, producer_id=7, producer_epoch=0,
                    base_sequence=number,
                )  # fmt: skip
                data = module.PartitionProduceData(index=0, records=records)
                named = module.TopicProduceData(name="t", partition_data=(data,))
                asked = module.ProduceRequest(
                    transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=(named,)
                )
                body = encode_request(asked, number, "me")
                frames.append((asked, len(body).to_bytes(4) + body))
            await side.take(frames[0][1])
            rest = b"".join(one for _, one in frames[1:])
            log = side.partition(0).log.state
            disk = log.segments.active._disk
            before = side.state()
            with patch.object(type(disk), "pwrite", side_effect=DiskError("writing", log.dir, ENOSPC)):
                (refused,) = await side.take(rest)
            assert side.state()[0] == before[0]
            assert codes(frames, bytes_of(refused)) == [
                (ErrorCode.kafka_storage_error, -1),
                (ErrorCode.out_of_order_sequence_number, -1),
                (ErrorCode.out_of_order_sequence_number, -1),
            ]
            side.in_runs = 0
            (taken,) = await side.take(rest)
            assert codes(frames, bytes_of(taken)) == [(ErrorCode.none, offset) for offset in (1, 2, 3)]
            assert side.in_runs == 3
            assert log.end_offset == 4

    asyncio.run(scenario())


def request_of(number: int, records: bytes) -> tuple[Any, bytes]:
    """A request of one batch, and its bytes."""
    module = schema(0, 9)
    data = module.PartitionProduceData(index=0, records=records)
    named = module.TopicProduceData(name="t", partition_data=(data,))
    asked = module.ProduceRequest(
        transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=(named,)
    )
    body = encode_request(asked, number, "me")
    return asked, len(body).to_bytes(4) + body


def test_a_segment_that_cannot_be_read_is_told_each_request() -> None:
    """After a restart the first timestamp of the segment is read before a batch may be appended."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            side = Side(await stack.enter_async_context(one_of_three(folder, *WORLD)), in_runs=True)
            frames = [request_of(number, batch([b"x"], base_timestamp=START_MS)) for number in range(4)]
            await side.take(frames[0][1])
            active = side.partition(0).log.state.segments.active
            error = DiskError("reading", active.log.path, EIO)
            with (
                patch.object(active, "_first_timestamp", None),
                patch.object(type(active.log), "get", side_effect=error),
            ):
                (answers,) = await side.take(b"".join(one for _, one in frames[1:]))
            assert codes(frames, bytes_of(answers)) == [(ErrorCode.kafka_storage_error, -1)] * 3
            assert side.partition(0).end_offset == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("flush_messages", "most"), [(1, 0), (8, 41)])
def test_the_kernel_goes_through_few_batches_that_a_flush_leaves_to_the_general_way(
    flush_messages: int, most: int
) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            side = Side(await stack.enter_async_context(one_of_three(folder, *WORLD)), in_runs=True)
            side.partition(0).configure(LogConfig(flush_messages=flush_messages))
            records = batch([b"x"], base_timestamp=START_MS)
            taken: list[int] = []

            def noted(*given: Any) -> Any:
                found = produce_kernel.take_run(*given)
                taken.append(found[0])
                return found

            with patch("service.records.produced_run.take_run", noted):
                await side.take(b"".join(request_of(number, records)[1] for number in range(40)))
            assert side.partition(0).end_offset == 40
            assert sum(taken) <= most  # of the first flush one twice: it begins the segment

    asyncio.run(scenario())


def test_batches_that_inflate_to_much_are_rarely_inflated_twice_on_the_loop() -> None:
    async def scenario(*, in_runs: bool) -> int:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            side = Side(await stack.enter_async_context(one_of_three(folder, *WORLD)), in_runs=in_runs)
            request = request_of(1, batch([bytes(3_000_000)], codec=4, base_timestamp=START_MS))[1]
            with patch("service.records.validation.decompress", wraps=decompress) as inflate:
                for _ in range(9):
                    await side.take(request)
            assert side.partition(0).end_offset == 9
            return int(inflate.call_count)

    assert asyncio.run(scenario(in_runs=False)) == 18  # once for a slice, once on a thread
    assert asyncio.run(scenario(in_runs=True)) == 19


def test_the_log_names_the_request_that_was_taken() -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            side = Side(await stack.enter_async_context(one_of_three(folder, *WORLD)), in_runs=True)
            for number in (3, 77):
                await side.take(request_of(number, batch([b"x"], base_timestamp=START_MS))[1])
                assert side.context.correlation_id == number
            assert side.in_runs == 2

    asyncio.run(scenario())


def codes(frames: list[tuple[Any, bytes]], answers: bytes) -> list[tuple[ErrorCode, int]]:
    found: list[tuple[ErrorCode, int]] = []
    at = 0
    for asked, _ in frames[1:]:
        stop = at + 4 + int.from_bytes(answers[at : at + 4])
        (topic_answer,) = decode_response(asked, answers[at + 4 : stop]).responses
        (one,) = topic_answer.partition_responses
        found.append((ErrorCode(one.error_code), one.base_offset))
        at = stop
    assert at == len(answers)
    return found


def test_only_so_many_beginnings_of_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_runs, "MOST_ROUTES", 3)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            node = await stack.enter_async_context(one_of_three(folder, *WORLD))
            side, module = Side(node, in_runs=True), schema(0, 9)

            async def ask(client_id: str) -> int:
                before = side.in_runs
                data = module.PartitionProduceData(index=0, records=batch([b"x"], base_timestamp=START_MS))
                named = module.TopicProduceData(name="t", partition_data=(data,))
                asked = module.ProduceRequest(
                    transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=(named,)
                )
                body = encode_request(asked, 1, client_id)
                (answer,) = await side.take(len(body).to_bytes(4) + body)
                assert answer
                return side.in_runs - before

            assert [await ask(one) for one in "abc"] == [1, 1, 1]
            assert [await ask(f"other {number}") for number in range(63)] == [0] * 63
            assert [await ask(one) for one in "abc"] == [1, 1, 1]
            assert await ask("d") == 1
            assert [await ask(one) for one in "bcda"] == [1, 1, 1, 0]
            assert side.partition(0).log.state.end_offset == 3 + 63 + 3 + 1 + 4

    asyncio.run(scenario())
