"""Copy of a topic by transactions: `python -m tests.support.copying_worker BOOTSTRAP ID INPUT OUTPUT GROUP`

It consumes in a group, produces each value into the same partition of the output and commits the offsets in
the same transaction, until it is killed. It ends by itself where its producer cannot go on, to be started
again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer

AT_ONCE = 500
WAIT_S = 30.0


class Abortable(Exception):
    """The transaction is to be aborted, and begun again from the committed offsets."""


def tried(step: Callable[..., Any], *arguments: Any) -> None:
    """A step of the transaction, again while that may help."""
    while True:
        try:
            step(*arguments)
            return
        except KafkaException as error:
            told = error.args[0]
            if told.txn_requires_abort():
                raise Abortable(told.str()) from error
            if not told.retriable():
                raise


def copy(consumer: Consumer, producer: Producer, output: str, messages: list[Message]) -> None:
    """One transaction."""
    producer.begin_transaction()
    for message in messages:
        producer.produce(output, message.value(), partition=message.partition())
    positions = consumer.position(consumer.assignment())
    tried(
        producer.send_offsets_to_transaction,
        [one for one in positions if one.offset >= 0],
        consumer.consumer_group_metadata(),
        WAIT_S,
    )
    tried(producer.commit_transaction, WAIT_S)


def go_back(consumer: Consumer) -> None:
    """Take up again where the last transaction that was committed ended."""
    for place in consumer.committed(consumer.assignment(), WAIT_S):
        place.offset = max(place.offset, 0)
        consumer.seek(place)


def main(bootstrap: str, transactional_id: str, source: str, output: str, group: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20_000,
            "message.timeout.ms": 20_000,
            "linger.ms": 5,
        }
    )
    tried(producer.init_transactions, 60.0)
    consumer.subscribe([source])
    print("ready", flush=True)
    while True:
        messages = [one for one in consumer.consume(AT_ONCE, 0.2) if one.error() is None]
        if not messages:
            continue
        try:
            copy(consumer, producer, output, messages)
        except Abortable as why:
            print(f"aborts: {why}", file=sys.stderr, flush=True)
            tried(producer.abort_transaction, WAIT_S)
            go_back(consumer)


if __name__ == "__main__":
    main(*sys.argv[1:])
