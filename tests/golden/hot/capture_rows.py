"""Writes ``kafka-rows/``: a partition with open and aborted transactions of Apache Kafka 4.3.1.

    python tests/golden/hot/capture_rows.py BOOTSTRAP LOG_DIR STOP

BOOTSTRAP is one Kafka node, LOG_DIR its ``log.dirs``, STOP a command that ends it cleanly. Besides the files
of the partition there is ``expected.json``: what a consumer of committed records saw, and where it ended.
Times differ from run to run; the tests compare with what lies beside.
"""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

FOLDER = Path(__file__).parent / "kafka-rows"
TOPIC = "golden"
ROLL_S = 0.6


class Transactional:
    """A producer of one transactional id; its values are its name and a number."""

    def __init__(self, bootstrap: str, name: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
        self.producer = Producer(settings)
        self.producer.init_transactions(30)
        self.name, self.sent = name, 0

    def begin(self, count: int) -> None:
        self.producer.begin_transaction()
        self.send(count)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.producer.produce(TOPIC, f"{self.name}{self.sent}", partition=0)
            self.sent += 1
        self.producer.flush(30)

    def commit(self) -> None:
        self.producer.commit_transaction(30)

    def abort(self) -> None:
        self.producer.abort_transaction(30)


def write(bootstrap: str) -> None:
    a, b, c, d = (Transactional(bootstrap, name) for name in "abcd")
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})

    def tell(value: str) -> None:
        plain.produce(TOPIC, value, partition=0)
        plain.flush(30)

    tell("p0")
    a.begin(3)
    b.begin(2)
    tell("p1")
    a.abort()
    c.begin(1)
    time.sleep(ROLL_S)
    c.send(2)  # another segment
    b.commit()
    tell("p2")
    a.begin(1)
    a.abort()
    c.abort()
    time.sleep(ROLL_S)
    tell("p3")  # one without a row
    b.begin(2)
    time.sleep(ROLL_S)
    d.begin(2)
    b.abort()
    a.begin(1)
    a.commit()
    d.send(1)
    tell("p4")
    print("d stays open")


def read(bootstrap: str) -> dict[str, object]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    partition = TopicPartition(TOPIC, 0, 0)
    stable = consumer.get_watermark_offsets(partition, 30)[1]
    consumer.assign([partition])
    seen = []
    while consumer.position([partition])[0].offset < stable:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            seen.append([message.offset(), message.value().decode()])
        elif message is None and seen and seen[-1][1] == "p3":  # markers alone are left
            break
    consumer.close()
    return {"last_stable_offset": stable, "committed": seen}


def main() -> None:
    bootstrap, log_dir, stop = sys.argv[1:]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"segment.ms": "500", "index.interval.bytes": "100"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
    write(bootstrap)
    expected = read(bootstrap)
    subprocess.run(shlex.split(stop), check=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(Path(log_dir) / f"{TOPIC}-0", FOLDER / f"{TOPIC}-0")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
