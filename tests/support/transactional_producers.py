"""Transactional producers of four clients behind one interface: librdkafka, aiokafka, kafka-python, Java."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
from kafka.consumer.group import ConsumerGroupMetadata

from tests.support.java_clients import java
from tests.support.processes import end

TIMEOUT_S = 60.0


class Refused(Exception):
    """What a client raises where its transaction cannot go on; the message is the client's."""


class Transactional(Protocol):
    """A producer with a transactional id; made, it has fenced the one before it. Steps raise `Refused`."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: str) -> None:
        """Write a record, and wait until the broker has it."""

    def offset(self, topic: str, partition: int, offset: int, group: str) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class ConfluentTransactional:
    """librdkafka."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, folder: Path) -> None:
        del folder
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._bootstrap = bootstrap
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 0,
                "message.timeout.ms": min(timeout_ms, 60_000),
                **settings,
            }
        )
        self._try(self._producer.init_transactions, TIMEOUT_S)

    def _try(self, step: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                return step(*arguments)
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise Refused(error.args[0].str()) from error

    def begin(self) -> None:
        self._try(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: str) -> None:
        errors = []
        self._producer.produce(
            topic, value.encode(), partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
        self._producer.flush(TIMEOUT_S)
        if errors != [None]:
            raise Refused(str(errors))

    def offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": group}
        consumer = confluent_kafka.Consumer(settings)
        try:
            place = confluent_kafka.TopicPartition(topic, partition, offset)
            metadata = consumer.consumer_group_metadata()
            self._try(self._producer.send_offsets_to_transaction, [place], metadata, TIMEOUT_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        self._try(self._producer.commit_transaction, TIMEOUT_S)

    def abort(self) -> None:
        self._try(self._producer.abort_transaction, TIMEOUT_S)

    def close(self) -> None:
        del self._producer


class KafkaPythonTransactional:
    """kafka-python."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, folder: Path) -> None:
        del folder
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=0,
        )
        try:
            self._try(self._producer.init_transactions)
        except Refused:
            self.close()
            raise

    def _try(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except kafka.errors.KafkaError as error:
            raise Refused(repr(error)) from error

    def begin(self) -> None:
        self._try(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: str) -> None:
        future = self._try(lambda: self._producer.send(topic, value.encode(), partition=partition))
        self._try(future.get, TIMEOUT_S)

    def offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        place = kafka.TopicPartition(topic, partition)
        metadata = ConsumerGroupMetadata(group, -1, "", None)
        offsets = {place: kafka.structs.OffsetAndMetadata(offset, "", -1)}
        self._try(self._producer.send_offsets_to_transaction, offsets, metadata)

    def commit(self) -> None:
        self._try(self._producer.commit_transaction)

    def abort(self) -> None:
        self._try(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=5)


class AioKafkaTransactional:
    """aiokafka, on a loop of its own thread."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, folder: Path) -> None:
        del folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def started() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = self._try(started())

    def _try(self, step: Coroutine[Any, Any, Any]) -> Any:
        async def timely() -> Any:
            return await asyncio.wait_for(step, TIMEOUT_S)

        try:
            return asyncio.run_coroutine_threadsafe(timely(), self._loop).result()
        except aiokafka.errors.KafkaError as error:
            raise Refused(repr(error)) from error

    def begin(self) -> None:
        self._try(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: str) -> None:
        self._try(self._producer.send_and_wait(topic, value.encode(), partition=partition))

    def offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        place = aiokafka.TopicPartition(topic, partition)
        self._try(self._producer.send_offsets_to_transaction({place: offset}, group))

    def commit(self) -> None:
        self._try(self._producer.commit_transaction())

    def abort(self) -> None:
        self._try(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(Refused):  # where it was fenced
            self._try(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class JavaTransactional:
    """The Java client, a process of tests/java/clients/Transactions.java; the only one that speaks TV2."""

    def __init__(
        self, bootstrap: str, transactional_id: str, timeout_ms: int, folder: Path, **more: str
    ) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": str(timeout_ms),
            "delivery.timeout.ms": str(max(timeout_ms, 1)),
            "request.timeout.ms": str(min(timeout_ms, 30_000)),
            "linger.ms": "0",
            **more,
        }
        self._process: subprocess.Popen[str] = java(
            "Transactions",
            *(f"{key}={value}" for key, value in settings.items()),
            log=folder / f"java-{transactional_id}.log",
        )
        try:
            self.tell("init")
        except Refused:
            self.close()
            raise

    def tell(self, *words: object) -> str:
        self.ask(*words)
        return self.answer()

    def ask(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        if not line.startswith("="):
            raise Refused(line or "its process has ended")
        return line[1:]

    def begin(self) -> None:
        self.tell("begin")

    def send(self, topic: str, partition: int, value: str) -> None:
        self.tell("send", topic, partition, value)
        self.tell("flush")

    def offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        self.tell("offset", topic, partition, offset, group)

    def commit(self) -> None:
        self.tell("commit")

    def abort(self) -> None:
        self.tell("abort")

    def close(self) -> None:
        end(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


PRODUCERS: tuple[tuple[str, Callable[[str, str, int, Path], Transactional]], ...] = (
    ("confluent-kafka", ConfluentTransactional),
    ("kafka-python", KafkaPythonTransactional),
    ("aiokafka", AioKafkaTransactional),
    ("java", JavaTransactional),
)
