"""A member of a group as a process of its own, to be killed: tells what it has read, then commits it.

python -m tests.support.group_member BOOTSTRAP GROUP TOPIC PROTOCOL
"""

from __future__ import annotations

import signal
import sys

import confluent_kafka


def main(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    own = {} if protocol == "consumer" else {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **own,
        }
    )
    consumer.subscribe([topic])
    while not stopping:
        messages = [one for one in consumer.consume(200, 0.2) if one.error() is None]
        if not messages:
            continue
        sys.stdout.write("".join(f"{one.value().decode()}\n" for one in messages))
        sys.stdout.flush()
        try:
            consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as e:
            # The node is away, or the group is being dealt out anew: what is not committed is read again.
            sys.stderr.write(f"{e}\n")
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
