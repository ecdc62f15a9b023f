"""Records what Apache Kafka answers to readers of a log with transactions, and the log: `kafka-transactions`.

    python -m tests.golden.hot.capture_transactions

`golden-0` is the partition's directory after a clean stop; `exchanges.json` has the frames of Fetch,
ListOffsets and DescribeProducers (without sizes, in hex) that were exchanged after the broker had started
with it again: request, response without its records, and the records' position in the response and their
size. A fetch asks for as many bytes as there are: Kafka does not go on in the next segment.
The broker of the files at hand was Apache Kafka 4.3.1 (KRaft, one node).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from service.records.builder import BatchBuilder
from tests.support.kafka_node import KafkaNode
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, decode_response, encode_request, schema

OUT = Path(__file__).with_name("kafka-transactions")
TOPIC = "golden"
WRITTEN_MS = 1_795_226_000_000


class _Producer:
    def __init__(self, connection: RawConnection, transactional_id: str | None) -> None:
        self._connection = connection
        self._id = transactional_id
        request = schema(22, 4).InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout=timedelta(minutes=10), producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        answer = _until_done(connection, request, lambda answer: answer.error_code)
        self.producer_id, self.epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0

    def send(self, *values: bytes) -> None:
        if self._id is not None:
            module = schema(24, 3)
            topic = module.AddPartitionsToTxnTopic(name=TOPIC, partitions=(0,))
            request = module.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id, v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=(topic,),
            )  # fmt: skip
            _until_done(
                self._connection,
                request,
                lambda answer: (
                    answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
                ),
            )
        builder = BatchBuilder(
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self._sequence,
            is_transactional=self._id is not None,
        )  # fmt: skip
        for n, value in enumerate(values):
            builder.add(WRITTEN_MS + 10 * self._sequence + n, b"k", value)
        module = schema(0, 9)
        part = module.PartitionProduceData(index=0, records=bytes(builder.build()))
        request = module.ProduceRequest(
            acks=-1, timeout=timedelta(seconds=10), transactional_id=self._id,
            topic_data=(module.TopicProduceData(name=TOPIC, partition_data=(part,)),),
        )  # fmt: skip
        answer = self._connection.call(request).responses[0].partition_responses[0]
        assert answer.error_code == 0, answer
        self._sequence += len(values)

    def end(self, *, is_commit: bool) -> None:
        assert self._id is not None
        request = schema(26, 3).EndTxnRequest(
            transactional_id=self._id, producer_id=self.producer_id, producer_epoch=self.epoch,
            committed=is_commit,
        )  # fmt: skip
        _until_done(self._connection, request, lambda answer: answer.error_code)


def _until_done(connection: RawConnection, request: Any, error_of: Any) -> Any:
    """Again while the coordinator is busy with the transaction before."""
    for _ in range(100):
        answer = connection.call(request)
        if int(error_of(answer)) == 0:
            return answer
        time.sleep(0.1)
    raise AssertionError(answer)


def _write(connection: RawConnection) -> None:
    plain, a, b, c, d = (_Producer(connection, one) for one in (None, *"abcd"))
    plain.send(b"first", b"second")
    a.send(b"a-aborted-1" * 20)
    b.send(b"b-committed-1" * 20, b"b-committed-2")
    plain.send(b"between" * 20)
    a.send(b"a-aborted-2" * 20)
    a.end(is_commit=False)
    b.end(is_commit=True)
    for n in range(12):
        d.send(b"d-%d" % n * 30)
        d.end(is_commit=n % 3 == 0)
        plain.send(b"plain-%d" % n * 30)
    b.send(b"b-aborted-over-segments")
    for n in range(6):
        a.send(b"a-%d" % n * 60, b"more" * 40)
        a.end(is_commit=n % 2 == 1)
    b.end(is_commit=False)
    plain.send(b"last stable")
    c.send(b"c-open" * 10)
    d.send(b"d-aborted-behind")
    d.end(is_commit=False)
    plain.send(b"hidden behind c")


def _fetch(version: int, offset: int, max_bytes: int, isolation: int) -> Any:
    module = schema(1, version)
    part = module.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1,
        partition_max_bytes=max_bytes, **({"last_fetched_epoch": -1} if version >= 12 else {}),
    )  # fmt: skip
    return module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=0, max_bytes=1 << 20, isolation_level=isolation,
        session_id=0, session_epoch=-1, topics=(module.FetchTopic(topic=TOPIC, partitions=(part,)),),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip


def _offsets(timestamp: int, isolation: int) -> Any:
    module = schema(2, 7)
    part = module.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    topic = module.ListOffsetsTopic(name=TOPIC, partitions=(part,))
    return module.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=(topic,))


def _requests(connection: RawConnection, end: int) -> Iterator[Any]:
    for isolation in (0, 1):
        for offset in range(0, end + 2, 1 if isolation else 7):
            records = _records(connection.call(_fetch(11, offset, 1 << 20, isolation)))
            yield _fetch(11, offset, max(len(records), 1), isolation)
            for size in (1, 400, 900):
                if offset % 5 == 0 and size < len(records):
                    yield _fetch(12, offset, size, isolation)
        yield from (
            _offsets(one, isolation) for one in (-1, -2, -3, 0, WRITTEN_MS + 70, WRITTEN_MS + (1 << 40))
        )
    module = schema(61, 0)
    topic = module.TopicRequest(name=TOPIC, partition_indexes=(0,))
    yield module.DescribeProducersRequest(topics=(topic,))


def _records(answer: Any) -> bytes:
    """The records of a Fetch response, nothing of others."""
    if not hasattr(answer, "responses"):
        return b""
    return bytes(answer.responses[0].partitions[0].records or b"")


def _create(connection: RawConnection) -> None:
    module = schema(19, 5)
    configs = {"internal.segment.bytes": "2500", "index.interval.bytes": "300"}
    topic = module.CreatableTopic(
        name=TOPIC, num_partitions=1, replication_factor=1, assignments=(),
        configs=tuple(module.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()),
    )  # fmt: skip
    answer = connection.call(module.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=10)))
    assert answer.topics[0].error_code == 0, answer


def _is_led(bootstrap: str) -> bool:
    with RawConnection(bootstrap) as connection:
        return int(connection.call(_offsets(-1, 0)).topics[0].partitions[0].error_code) == 0


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    node = KafkaNode(folder / "kafka", {"transaction.state.log.num.partitions": "1"})
    try:
        with RawConnection(node.bootstrap) as connection:
            _create(connection)
            module = schema(10, 4)
            request = module.FindCoordinatorRequest(key_type=1, coordinator_keys=tuple("abcd"))
            _until_done(connection, request, lambda answer: answer.coordinators[0].error_code)
            wait_until("the topic to be led", lambda: _is_led(node.bootstrap), 30)
            _write(connection)
        node.stop()
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir()
        shutil.copytree(node.data / f"{TOPIC}-0", OUT / f"{TOPIC}-0")
        node.start()
        wait_until("the topic to be led", lambda: _is_led(node.bootstrap), 30)
        exchanges = []
        with RawConnection(node.bootstrap) as connection:
            end = connection.call(_offsets(-1, 0)).topics[0].partitions[0].offset
            for request in _requests(connection, end):
                asked = encode_request(request, 7)
                connection.send_frame(asked)
                frame = connection.receive_frame()
                records = _records(decode_response(request, frame))
                at = frame.index(records) if records else len(frame)
                rest = frame[:at] + frame[at + len(records) :]
                exchanges.append([asked.hex(), rest.hex(), at, len(records)])
        lines = ",\n".join(map(json.dumps, exchanges))
        (OUT / "exchanges.json").write_text(f"[\n{lines}\n]\n")
    finally:
        node.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
