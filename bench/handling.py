"""`python -m bench.handling [--rounds N]`: CPU time of the loop's thread for one small Produce or Fetch.

The node is in this process and the client is another thread, whose time does not count. Of the rounds the
least is told beside the median: on a busy machine it is what a change of the code shows in.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from bench.load import create, framed
from tests.node.conftest import NodeThread
from tests.support.batches import batch
from tests.support.wire import RawConnection, produce_request, schema

REQUESTS = 20_000
PIPELINED = 50
TOPIC = "handled"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.handling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        node = NodeThread(Path(name), None, None, **{"log.flush.interval.messages": str(2**31)}).start()
        try:
            bootstrap = f"{node.host}:{node.port}"
            create(bootstrap, TOPIC)
            frames = {"Produce, one record of 100 B": _produced(), "Fetch, one record of 100 B": _fetched()}
            for what, frame in frames.items():
                spent = [_spent_us(node, bootstrap, frame) for _ in range(rounds + 1)][1:]
                print(
                    f"{what}: {min(spent):.2f} µs at least, {statistics.median(spent):.2f} µs in the middle"
                )
        finally:
            node.stop()
    return 0


def _produced() -> bytes:
    return framed(produce_request(TOPIC, 0, batch([bytes(100)]), acks=1))


def _fetched() -> bytes:
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1,
        current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    return framed(
        module.FetchRequest(
            replica_id=-1, max_wait=timedelta(seconds=1), min_bytes=1, max_bytes=50 << 20,
            isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
            topics=(module.FetchTopic(topic=TOPIC, partitions=(part,)),),
        )
    )  # fmt: skip


def _spent_us(node: NodeThread, bootstrap: str, frame: bytes) -> float:
    """CPU time of the loop's thread per request."""

    async def now() -> float:
        return time.thread_time()

    with RawConnection(bootstrap) as connection:
        before = asyncio.run_coroutine_threadsafe(now(), node._loop).result(20)
        for _ in range(REQUESTS // PIPELINED):
            connection.send(frame * PIPELINED)
            for _ in range(PIPELINED):
                connection.receive_frame()
        after = asyncio.run_coroutine_threadsafe(now(), node._loop).result(20)
    return (after - before) / REQUESTS * 1e6


if __name__ == "__main__":
    raise SystemExit(main())
