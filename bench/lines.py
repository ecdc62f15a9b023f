"""`python -m bench.lines [--megabytes N]`: `firn produce` and `firn consume` beside loops of librdkafka.

The loops are a dozen lines of Python over confluent-kafka's own client: a producer that sends each line of a
file, and a consumer that writes each value. Each side has a topic of its own on one node; what comes out is
compared with what went in.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from bench import load
from bench.peers import firn, have_pages
from tests.support.processes import REPOSITORY

FIRN = [sys.executable, "-m", "service.cli.main"]
SEND = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True, "linger.ms": 10})
for line in open(sys.argv[3], "rb"):
    while True:
        try:
            producer.produce(sys.argv[2], line[:-1])
            break
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)
producer.flush()
"""
READ = """
import sys
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "bench", "auto.offset.reset": "earliest"})
consumer.assign([TopicPartition(sys.argv[2], 0, 0)])
left = int(sys.argv[3])
while left:
    for message in consumer.consume(500, 1.0):
        sys.stdout.buffer.write(message.value() + b"\\n")
        left -= 1
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lines", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of lines of 100 bytes (default: 1000)")
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, firn(Path(name) / "node") as peer:
        folder = Path(name)
        have_pages(folder, (5 * megabytes) << 20)
        lines, count = folder / "lines", megabytes * 10_000
        with lines.open("wb") as file:
            for first in range(0, count, 10_000):
                file.writelines(b"%099d\n" % number for number in range(first, first + 10_000))
        for topic in ("ours", "theirs"):
            load.create(peer.bootstrap, topic)
        where = ("--bootstrap-server", peer.bootstrap)
        to_send = {
            "ours": [*FIRN, "produce", "ours", "--file", str(lines), *where],
            "theirs": [sys.executable, "-c", SEND, peer.bootstrap, "theirs", str(lines)],
        }
        to_read = {
            "ours": [*FIRN, "consume", "ours", "--to", "end", *where],
            "theirs": [sys.executable, "-c", READ, peer.bootstrap, "theirs", str(count)],
        }
        for what, commands in (("produce", to_send), ("consume", to_read)):
            rates = {side: megabytes / _took(command, folder / side) for side, command in commands.items()}
            print(
                f"{what}: firn {rates['ours']:.0f} MB/s, a loop of librdkafka {rates['theirs']:.0f} MB/s:"
                f" {rates['ours'] / rates['theirs']:.2f} x",
                flush=True,
            )
        wanted = sha256(lines.read_bytes()).digest()
        assert all(sha256((folder / side).read_bytes()).digest() == wanted for side in to_read), (
            "not the lines"
        )
    return 0


def _took(command: list[str], output: Path) -> float:
    began = time.monotonic()
    with output.open("wb") as file:
        subprocess.run(command, stdout=file, check=True, cwd=REPOSITORY)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
