"""Many partitions: `python -m bench.partitions [--partitions 10000] [--step 1000]`

Makes topics of `--step` partitions until there are so many, writes one batch into each partition of the last
topic, stops the node, starts it again, leaves it alone, ends it with `kill -9`, and starts it once more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from bench.figures import FIRN, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Cpu, rss_mb
from tests.support.batches import batch
from tests.support.processes import Node
from tests.support.wire import RawConnection, schema

IDLE_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--step", type=int, default=1_000, help="partitions of each topic")
    add_json_option(parser)
    arguments = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-partitions-") as name:
        figures.tell(FIRN, measure(Path(name), arguments.partitions, arguments.step))
    write_asked(arguments, figures)
    return 0


def measure(folder: Path, partitions: int, step: int) -> list[Measured]:
    """The figures, in the order in which they were taken."""
    node = Node(folder)
    try:
        node.start()
        found = _create(node, partitions, step)
        found.append(
            Measured(f"stop, clean, of {partitions} partitions", "s", None, _seconds(lambda: node.stop(300)))
        )
        found.append(Measured("start after it", "s", 6.0, _seconds(lambda: node.start(300))))
        found += _idle(node)
        node.kill()
        found.append(Measured("start after kill -9", "s", None, _seconds(lambda: node.start(300))))
        found.append(Measured("open files then", "", None, len(node.open_files())))
        return found
    finally:
        node.close()


def _create(node: Node, partitions: int, step: int) -> list[Measured]:
    took = []
    with RawConnection(node.bootstrap, 300) as connection:
        for number in range(partitions // step):
            took.append(_seconds(partial(create, connection, f"wide-{number}", step)))
            print(f"topic {number + 1}, of {step} partitions: {took[-1]:.2f} s", file=sys.stderr)
        seconds = _seconds(lambda: _write(connection, f"wide-{partitions // step - 1}", step))
    return [
        Measured(f"{step} partitions created in an empty node", "s", None, took[0]),
        Measured(f"{step} created beside {partitions - step}", "s", 2.0, took[-1]),
        Measured(f"one batch into each of {step}", "s", None, seconds),
        Measured("resident memory with all of them, just made", "MB", None, rss_mb(node.pid)),
        Measured("open files then", "", None, len(node.open_files())),
    ]


def _idle(node: Node) -> list[Measured]:
    time.sleep(5)
    with Cpu(node.pid) as cpu:
        time.sleep(IDLE_S)
    return [
        Measured(f"CPU of {IDLE_S:.0f} s idle, of a core", "%", 2.0, cpu.all / cpu.wall * 100),
        Measured("resident memory, idle", "MB", 250, rss_mb(node.pid)),
        Measured("open files, idle", "", None, len(node.open_files())),
    ]


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def create(connection: RawConnection, topic: str, partitions: int) -> None:
    """CreateTopics of one topic, returned from when it is there."""
    module = schema(19, 7)
    one = module.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    request = module.CreateTopicsRequest(topics=(one,), timeout=timedelta(seconds=300), validate_only=False)
    answer = connection.call(request).topics[0]
    assert answer.error_code == 0, (answer.error_code, answer.error_message)


def _write(connection: RawConnection, topic: str, partitions: int) -> None:
    module = schema(0, 9)
    for first in range(0, partitions, 100):
        data = tuple(
            module.PartitionProduceData(index=index, records=batch([bytes(100)]))
            for index in range(first, min(first + 100, partitions))
        )
        request = module.ProduceRequest(
            acks=1,
            timeout=timedelta(seconds=60),
            topic_data=(module.TopicProduceData(name=topic, partition_data=data),),
        )
        for part in connection.call(request).responses[0].partition_responses:
            assert part.error_code == 0, part.error_code


if __name__ == "__main__":
    sys.exit(main())
