"""Worth and price of merges: `python -m bench.merging`, by default 10,000 objects of 100 KB

One node over a bucket behind an S3 gateway. A topic is copied in small segments; then merges are switched on.
Printed: objects before and after, requests and seconds of a count by Spark before and after (medians of
`--rounds`), seconds and bytes of the merge, and the times of a producer and consumer at a steady pace without
and with it. Without Spark (`make spark`) the count is left out, and said so.

Small: `python -m bench.merging --objects 200 --rounds 1 --quiet-s 5`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.end_to_end import EndToEnd
from bench.replica_load import Felt
from tests.support.processes import Node, free_port, wait_until
from tests.support.stores import CREDENTIALS, Store, new_bucket, versitygw_binary, versitygw_server

TOPIC: Final = "clicks"
PACED: Final = "paced"
SEGMENT_BYTES: Final = 100_000
VALUE_BYTES: Final = 1_000
PACE: Final = 200
"""Records a second of the paced producer."""
PATIENCE_S: Final = 3_600
_STILL_S: Final = 10.0
_OWN_HEADERS: Final = frozenset({"transfer-encoding", "connection", "content-length", "date", "server"})


def main() -> int:
    """Run the bench; return the exit code: 1 where the merge does not end."""
    args = _arguments()
    if versitygw_binary() is None:
        print("bench.merging: versitygw is not there (make fetch-tools)", file=sys.stderr)
        return 2
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-merging-")))
        endpoint = stack.enter_context(versitygw_server(folder))
        store = new_bucket(endpoint, "merging")
        settings = {
            **store.node_settings,
            "firn.http.listener": f"127.0.0.1:{free_port()}",
            "firn.merge.min.age.ms": "0",
            "firn.remote.object.grace.ms": str(args.grace_s * 1000),
            "remote.log.manager.task.interval.ms": "1000",
        }
        node = Node(folder / "node", settings, dict(store.env)).start()
        stack.callback(node.kill)
        spark = stack.enter_context(_session(folder)) if find_spec("pyspark") else None
        return run(args, node, store, endpoint, spark)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000, help="objects of 100 KB (default: 10000)")
    parser.add_argument("--rounds", type=int, default=3, help="counts by Spark (default: 3)")
    parser.add_argument("--quiet-s", type=float, default=20, help="measured time without a merge (20 s)")
    parser.add_argument("--grace-s", type=int, default=60, help="firn.remote.object.grace.ms (60 s)")
    return parser.parse_args()


def run(args: argparse.Namespace, node: Node, store: Store, endpoint: str, spark: Any) -> int:
    """Fill a topic, merge it, and print what that took and what it is worth."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    tiered = {
        "remote.storage.enable": "true", "internal.segment.bytes": str(SEGMENT_BYTES),
        "segment.bytes": str(1 << 20), "firn.merge.enable": "false",
    }  # fmt: skip
    topics = [NewTopic(TOPIC, 1, 1, config=tiered), NewTopic(PACED, 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    _fill(node.bootstrap, args.objects)
    wait_until("the segments to be copied", lambda: _segments(store) >= args.objects, PATIENCE_S)
    before = _segments(store)
    counted = _counted(spark, store, endpoint, args.rounds)
    with EndToEnd(node.bootstrap, PACED, 1, PACE) as paced:
        time.sleep(2)
        alone = paced.felt(args.quiet_s)
        began = time.monotonic()
        _enable_merges(admin)
        beside: list[Felt] = []
        progress = _Progress(node)
        while not progress.is_over():
            if time.monotonic() - began > PATIENCE_S:
                print("the merge has not ended", file=sys.stderr)
                return 1
            beside.append(paced.felt(2.0))
        merge_s = progress.last - began
    named = (
        before
        - round(_metric(node, "firn_rewrite_objects_before_total"))
        + round(_metric(node, "firn_rewrite_objects_after_total"))
    )
    again = _counted(spark, store, endpoint, args.rounds)
    print(f"objects: {before} before, {named} after, {merge_s:.1f} s")
    written = _metric(node, "firn_rewrite_after_bytes_total") / (1 << 20)
    read = _metric(node, "firn_rewrite_read_bytes_total") / (1 << 20)
    print(f"written {written:.0f} MB, read from the bucket {read:.0f} MB")
    for what, one in (("before", counted), ("after", again)):
        if one is None:
            print(f"count by Spark {what}: left out, as pyspark is not here (make spark)")
        else:
            print(f"count by Spark {what}: {one[0]} requests, {one[1]:.2f} s, {one[2]} records")
    p99 = statistics.median(one.p99 for one in beside)
    print(
        f"p99 from producer to consumer: {alone.p99 * 1000:.1f} ms alone, {p99 * 1000:.1f} ms beside a merge"
    )
    return 0


def _fill(bootstrap: str, objects: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 16_384})
    value = os.urandom(VALUE_BYTES)
    for number in range((objects + 2) * (SEGMENT_BYTES // VALUE_BYTES)):
        while True:
            try:
                producer.produce(TOPIC, value, key=str(number % 1000))
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(600) == 0


def _segments(store: Store) -> int:
    return sum(key.endswith(".seg") for key in store.objects())


def _enable_merges(admin: AdminClient) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        TOPIC,
        incremental_configs=[
            ConfigEntry("firn.merge.enable", "true", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _metric(node: Node, name: str) -> float:
    """Return the sum of a metric's series."""
    with urlopen(f"http://{node.settings['firn.http.listener']}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


class _Progress:
    """Progress of the merges: over once there were some, and none for `_STILL_S`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._runs = 0.0
        self.last = time.monotonic()
        """when a run was published last, as far as was looked"""

    def is_over(self) -> bool:
        runs = _metric(self._node, "firn_rewrite_runs_total")
        if runs > self._runs or _metric(self._node, "firn_rewrite_running"):
            self._runs, self.last = runs, time.monotonic()
        return runs > 0 and time.monotonic() - self.last >= _STILL_S


def _counted(spark: Any, store: Store, endpoint: str, rounds: int) -> tuple[int, float, int] | None:
    """Return requests, seconds and records of a count by Spark, medians; None without Spark."""
    if spark is None:
        return None
    requests, times, records = [], [], 0
    for _ in range(rounds):
        with counting_proxy(endpoint) as (through, methods):
            reader = spark.read.format("firn").options(url=store.url, subscribe=TOPIC, endpoint=through)
            began = time.monotonic()
            records = reader.load().count()
            times.append(time.monotonic() - began)
            requests.append(methods["GET"] + methods["HEAD"])
    return round(statistics.median(requests)), statistics.median(times), records


@contextmanager
def _session(folder: Path) -> Iterator[Any]:
    from pyspark_firn import session

    config = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark"),
    }
    spark = session("bench", master="local[2]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def counting_proxy(endpoint: str) -> Iterator[tuple[str, Counter[str]]]:
    """Have a proxy before an S3 server; yield its address and its requests by method."""
    to = urlsplit(endpoint).netloc
    methods: Counter[str] = Counter()
    connections = threading.local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            methods[self.command] += 1
            if not hasattr(connections, "one"):
                connections.one = HTTPConnection(to, timeout=60)
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length) if length else None
            connections.one.request(self.command, self.path, body, dict(self.headers))
            answer = connections.one.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (
                    "transfer-encoding",
                    "connection",
                    "content-length",
                    "date",
                    "server",
                ):
                    self.send_header(name, value)
            size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", size or "0")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", methods
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
