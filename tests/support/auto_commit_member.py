"""A member of a group that leaves commits to its client, as a process of its own, to be killed.

    python -m tests.support.auto_commit_member KIND BOOTSTRAP GROUP TOPIC

Tells each record that it has read on stdout, once. SIGTERM closes it, which commits what it has read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

KINDS = ("confluent", "confluent-consumer", "aiokafka", "kafka-python")
EVERY_MS = 200
_stopping: list[int] = []


def tell(values: Iterable[bytes]) -> None:
    sys.stdout.write("".join(f"{value.decode()}\n" for value in values))
    sys.stdout.flush()


@contextmanager
def _anew_without_brokers(*errors: type[Exception]) -> Iterator[None]:
    """Starts this program anew, as who runs it would, where a client gives up as no broker can be reached.

    What it has read since its last commit is not committed then.
    """
    try:
        yield
    except errors:
        if _stopping:
            sys.exit(0)
        time.sleep(0.2)
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.auto_commit_member", *sys.argv[1:]])


def confluent(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    """librdkafka holds a record for read once it has handed it over: unless it is told, as here, when it was.

    That is how its documentation has at-least-once processing with `enable.auto.commit`.
    """
    from confluent_kafka import Consumer

    own = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": EVERY_MS,
            "enable.auto.offset.store": False,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **own,
        }
    )
    consumer.subscribe([topic])
    while not _stopping:
        for one in consumer.consume(200, 0.2):
            if one.error() is None:
                tell([one.value()])
                consumer.store_offsets(one)
    consumer.close()


def kafka_python(bootstrap: str, group: str, topic: str) -> None:
    import kafka
    from kafka.errors import KafkaConnectionError, KafkaTimeoutError

    with _anew_without_brokers(KafkaConnectionError, KafkaTimeoutError):
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=True,
            auto_commit_interval_ms=EVERY_MS,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        )
        while not _stopping:
            for records in consumer.poll(timeout_ms=200).values():
                tell(one.value for one in records)
    consumer.close()


async def with_aiokafka(bootstrap: str, group: str, topic: str) -> None:
    import aiokafka

    async with aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        auto_commit_interval_ms=EVERY_MS,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
    ) as consumer:
        while not _stopping:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                tell(one.value for one in records)


def main(kind: str, bootstrap: str, group: str, topic: str) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: _stopping.append(number))
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if kind.startswith("confluent"):
        confluent(bootstrap, group, topic, "consumer" if kind == "confluent-consumer" else "classic")
    elif kind == "kafka-python":
        kafka_python(bootstrap, group, topic)
    else:
        from aiokafka.errors import KafkaConnectionError

        with _anew_without_brokers(KafkaConnectionError):
            asyncio.run(with_aiokafka(bootstrap, group, topic))


if __name__ == "__main__":
    main(*sys.argv[1:])
