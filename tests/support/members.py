"""Members of consumer groups, each on a thread of its own: they poll, commit, and leave or vanish."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from tests.support.flow import Owners

ALL = ("confluent", "aiokafka", "kafka-python", "confluent-consumer")


class Member:
    """One consumer. `values` is what it has read, `owned` what it is given now.

    `topic`: one, several separated by commas, or a regular expression, which begins with ``^``. `owners` hear
    of what a member of librdkafka takes and gives.
    """

    def __init__(
        self,
        kind: str,
        bootstrap: str,
        group: str,
        topic: str,
        **options: Any,
    ) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.options = options
        self.values: list[bytes] = []
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self.owners: Owners | None = None
        self.rounds = 0
        self.errors: list[str] = []
        """what librdkafka told in place of records"""
        self.error: BaseException | None = None
        self._vanishes = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member-{kind}", daemon=True)

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(number for _, number in self.owned)

    def start(self) -> Member:
        self._thread.start()
        return self

    def leave(self) -> None:
        """Close, as a client that means well does."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def vanish(self) -> None:
        """Never be heard of again."""
        self._vanishes = True
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            if self.kind.startswith("confluent"):
                self._confluent()
            elif self.kind == "kafka-python":
                self._kafka_python()
            else:
                asyncio.run(self._aiokafka())
        except BaseException as e:
            traceback.print_exc()  # who waits for its partitions does not ask why there are none
            self.error = e

    def _given(self, partitions: Iterable[Any]) -> None:
        owned = _places(partitions)
        if owned != self.owned:
            self.rounds += 1
        self.owned = owned

    @property
    def _topics(self) -> list[str]:
        return [self.topic] if self.topic.startswith("^") else self.topic.split(",")

    @property
    def _subscription(self) -> dict[str, Any]:
        """Return the arguments of subscribe for kafka-python and aiokafka."""
        return {"pattern": self.topic} if self.topic.startswith("^") else {"topics": self._topics}

    def _confluent(self) -> None:
        own = (
            {"group.protocol": "consumer"}
            if self.kind == "confluent-consumer"
            else {"session.timeout.ms": 6000}
        )
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **own,
                **self.options,
            }
        )
        consumer.subscribe(self._topics, **self._listeners())
        while not self._stop.is_set():
            found = consumer.consume(100, 0.2)
            messages = [one for one in found if one.error() is None]
            self.values += [one.value() for one in messages]
            self.errors += [str(one.error()) for one in found if one.error() is not None]
            self._given(consumer.assignment())
            if messages:
                with _rebalancing(confluent_kafka.KafkaException):
                    consumer.commit(message=None, asynchronous=False)
        if not self._vanishes:
            consumer.close()

    def _listeners(self) -> dict[str, Any]:
        owners, name = self.owners, str(id(self))
        if owners is None:
            return {}
        return {
            "on_assign": lambda _, partitions: owners.takes(name, _places(partitions)),
            "on_revoke": lambda _, partitions: owners.gives(name, _places(partitions)),
        }

    def _kafka_python(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            **self.options,
        )
        consumer.subscribe(**self._subscription)
        while not self._stop.is_set():
            found = consumer.poll(timeout_ms=200)
            self.values += [one.value for messages in found.values() for one in messages]
            self._given(consumer.assignment())
            if found:
                with _rebalancing(kafka.errors.KafkaError):
                    consumer.commit()
        consumer.close(autocommit=False)

    async def _aiokafka(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            **self.options,
        )
        consumer.subscribe(**self._subscription)
        await consumer.start()
        try:
            while not self._stop.is_set():
                found = await consumer.getmany(timeout_ms=200)
                self.values += [one.value for messages in found.values() for one in messages]
                self._given(consumer.assignment())
                if found:
                    with _rebalancing(aiokafka.errors.KafkaError):
                        await consumer.commit()
        finally:
            await consumer.stop()


def _places(partitions: Iterable[Any]) -> frozenset[tuple[str, int]]:
    return frozenset((one.topic, one.partition) for one in partitions)


@contextmanager
def _rebalancing(refused: type[Exception]) -> Iterator[None]:
    """A commit that comes while the group is dealt out anew may be refused; the next owner reads again."""
    try:
        yield
    except refused as e:
        if (
            "rebalanc" not in str(e).lower()
            and "generation" not in str(e).lower()
            and "member" not in str(e).lower()
        ):
            raise
