"""`python -m bench.scrape [--partitions N]`: what a scrape of many partitions costs the node's loop.

One node with the partitions, as topics of 1,000, and a group with an offset in each. For each format it
prints the size of the text, the CPU time of the loop's thread, and the longest turns meanwhile, by the clock
and by CPU time: on a machine that others use, the latter is what the node itself took.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.console.access_settings import AccessSettings
from service.console.server import serving
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import free_port, wait_until

OF_TOPIC = 1_000
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scrape", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    count = parser.parse_args().partitions
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        node = NodeThread(Path(name), None, 100_000).start()
        try:
            with node.client() as client:
                _fill(Talk(client), count)
            gc.collect()
            gc.freeze()  # as a server does (`node/gc_policy.py`)
            for most_partitions in (0, count):
                _measure(node, most_partitions=most_partitions)
        finally:
            node.stop()
    return 0


def _fill(talk: Talk, count: int) -> None:
    """Create the topics, and commit an offset of a group for each of their partitions."""
    topics: dict[Any, range] = {}
    for number in range(count // OF_TOPIC):
        created = talk.create(f"topic-{number}", OF_TOPIC)
        assert created.error_code == ErrorCode.none, created
        topics[created.topic_id] = range(OF_TOPIC)
    talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("group",))
    for topic_id, partitions in topics.items():
        wait_until("the offsets of the group", lambda t=topic_id, p=partitions: _commit(talk, t, p))  # type: ignore[misc]


def _commit(talk: Talk, topic_id: Any, partitions: range) -> bool:
    module = request_module(ApiKey.OFFSET_COMMIT)
    asked = tuple(
        module.OffsetCommitRequestPartition(partition_index=n, committed_offset=0, committed_metadata="")
        for n in partitions
    )
    topic = module.OffsetCommitRequestTopic(topic_id=topic_id, partitions=asked)
    fields = {"group_id": "group", "member_id": "", "topics": (topic,)}
    answer = talk(ApiKey.OFFSET_COMMIT, "OffsetCommitRequest", **fields)
    return all(one.error_code == ErrorCode.none for one in answer.topics[0].partitions)


def _measure(node: NodeThread, *, most_partitions: int) -> None:
    port = free_port()
    made = threading_context(node, port, most_partitions=most_partitions)
    url = asyncio.run_coroutine_threadsafe(made.__aenter__(), node._loop).result(20)
    try:
        for accept, encoding in (("", "identity"), (OPENMETRICS, "identity"), ("", "gzip")):
            _scrape(node, url, accept, encoding)  # warm: the first one asks for what later ones know
            time.sleep(1.1)
            longest: list[tuple[float, float]] = []
            node._loop.call_soon_threadsafe(_watch, node, longest)
            before = _cpu_s(node)
            began = time.monotonic()
            data = _scrape(node, url, accept, encoding)
            took_s, spent_s = time.monotonic() - began, _cpu_s(node) - before
            node._loop.call_soon_threadsafe(_watch, node, None)
            lines = (gzip.decompress(data) if encoding == "gzip" else data).count(b"\n")
            name = "OpenMetrics" if accept else "plain"
            print(
                f"{'each partition' if most_partitions else 'sums'}, {name}, {encoding}: {lines:,} lines, "
                f"{len(data) / 1e6:.2f} MB in {took_s:.2f} s, {spent_s:.2f} s of CPU, longest turn "
                f"{1e3 * max((took for took, _ in longest), default=0):.1f} ms, by CPU time "
                f"{1e3 * max((cpu for _, cpu in longest), default=0):.1f} ms"
            )
    finally:
        asyncio.run_coroutine_threadsafe(made.__aexit__(None, None, None), node._loop).result(20)


def threading_context(node: NodeThread, port: int, *, most_partitions: int) -> Any:
    """Return the node's HTTP listener on `port`, as a context for the node's loop."""
    access = AccessSettings("bench", interval_s=60, timeout_s=10)
    return serving(
        node.node.parts,
        node._world,
        listener=f"127.0.0.1:{port}",
        access=access,
        most_partitions=most_partitions,
    )


def _scrape(node: NodeThread, url: str, accept: str, encoding: str) -> bytes:
    headers = {"Accept": accept or "*/*", "Accept-Encoding": encoding}
    asked = urllib.request.Request(url + "/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return bytes(answer.read())


def _cpu_s(node: NodeThread) -> float:
    async def now() -> float:
        return time.thread_time()

    return asyncio.run_coroutine_threadsafe(now(), node._loop).result(20)


def _watch(node: NodeThread, longest: list[tuple[float, float]] | None) -> None:
    """Note the turns of the loop from now on, by a callback in each of them."""
    state: dict[str, Any] = _WATCHED.setdefault(id(node), {})
    state["longest"] = longest
    if longest is not None:
        node._loop.call_soon(partial(_turn, node, state, longest, time.monotonic(), time.thread_time()))


_WATCHED: dict[int, dict[str, Any]] = {}


def _turn(
    node: NodeThread, state: dict[str, Any], longest: list[tuple[float, float]], at_s: float, cpu_s: float
) -> None:
    now_s, spent_s = time.monotonic(), time.thread_time()
    longest.append((now_s - at_s, spent_s - cpu_s))
    if state["longest"] is longest:
        node._loop.call_soon(partial(_turn, node, state, longest, now_s, spent_s))


if __name__ == "__main__":
    raise SystemExit(main())
