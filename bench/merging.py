"""Worth and price of merges: `python -m bench.merging`, by default 10,000 objects of 100 KB

One node over a bucket behind an S3 gateway. A topic is copied in small segments; then merges are switched on.
Printed: objects before and after, GETs and seconds of a count by Spark before and after (medians of
`--rounds`), seconds and bytes of the merge, and the times of a producer with acks=all at a steady pace:
alone, beside the merge, and beside the same work of a process that is not the node's
(`bench.foreign_merge`), which tells what two cores cannot give. Without Spark (`make spark`), and with
`--rounds 0`, the count is left out, and said so.

Small: `python -m bench.merging --objects 200 --rounds 1 --quiet-s 5 --grace-s 20`. Under two minutes, and
without Spark: `python -m bench.merging --objects 3000`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
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

from bench.replica_load import Felt, felt_of
from bench.spark_session import spark_session
from service.base.child_process import CHILD_NICE
from tests.support.processes import PYTHON, Node, free_port, wait_until
from tests.support.stores import CREDENTIALS, Store, new_bucket, versitygw_binary, versitygw_server

TOPIC: Final = "clicks"
PACED: Final = "paced"
SEGMENT_BYTES: Final = 100_000
VALUE_BYTES: Final = 1_000
PACE: Final = 200
"""Records a second of the paced producer."""
PATIENCE_S: Final = 3_600
_WHOLE: Final = 10_000
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
        has_spark = args.rounds > 0 and find_spec("pyspark") is not None
        spark = stack.enter_context(spark_session(folder)) if has_spark else None
        return run(args, node, store, endpoint, spark)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--objects", type=int, default=_WHOLE, help="objects of 100 KB (default: 10000)")
    parser.add_argument("--rounds", type=int, help="counts by Spark (default: 3 of 10000 objects, else 0)")
    parser.add_argument("--quiet-s", type=float, default=15, help="measured time without a merge (15 s)")
    parser.add_argument("--grace-s", type=int, default=60, help="firn.remote.object.grace.ms (60 s)")
    args = parser.parse_args()
    if args.rounds is None:
        args.rounds = 3 if args.objects >= _WHOLE else 0
    return args


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
    began = time.monotonic()
    _fill(node.bootstrap, args.objects)
    wait_until("the segments to be copied", lambda: _segments(store) >= args.objects, PATIENCE_S)
    before = _segments(store)
    print(f"{before} objects in the bucket after {time.monotonic() - began:.0f} s", flush=True)
    if spark is not None:  # the first query of a session starts Python's workers
        ending = json.dumps({TOPIC: {"0": 100}})
        reader = spark.read.format("firn").options(url=store.url, subscribe=TOPIC, endpoint=endpoint)
        reader.option("endingOffsets", ending).load().count()
    counted = _counted(spark, store, endpoint, args.rounds)
    with PacedProducer(node.bootstrap, PACED, PACE) as paced:
        time.sleep(2)
        alone = paced.felt(args.quiet_s)
        foreign = _beside_foreign(paced, store, endpoint, before)
        time.sleep(2)
        began = time.monotonic()
        _enable_merges(admin)
        progress = _Progress(node)
        while not progress.is_over():
            if time.monotonic() - began > PATIENCE_S:
                print("the merge has not ended", file=sys.stderr)
                return 1
            time.sleep(0.5)
        beside = paced.between(began, progress.last)
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
            print(f"count by Spark {what}: left out (--rounds 0, or no pyspark: make spark)")
        else:
            print(f"count by Spark {what}: {one[0]} GETs, {one[1]:.2f} s, {one[2]} records")
    _print_felt((("alone", alone), ("beside a foreign merge", foreign), ("beside the merge", beside)))
    return 0 if counted is None or again is None or counted[2] == again[2] else 1


def _print_felt(rows: Sequence[tuple[str, Felt]]) -> None:
    """Print the times of each row, and how many times those of the first they are."""
    (_, first), *_ = rows
    print(f"{'produce, acks=all':<26}{'records':>8}{'p50':>16}{'p99':>16}{'p99.9':>16}")
    for what, felt in rows:
        cells = (
            f"{now * 1000:.2f} ms {now / then:>5.2f} x"
            for now, then in zip(felt[1:4], first[1:4], strict=True)
        )
        print(f"{what:<26}{felt.requests:>8}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def _beside_foreign(paced: PacedProducer, store: Store, endpoint: str, objects: int) -> Felt:
    """Return the producer's times while another process does the same work, and publishes nothing."""
    command = [str(PYTHON), "-m", "bench.foreign_merge", store.url, endpoint, TOPIC, str(CHILD_NICE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        began = time.monotonic()
        made = int(process.stdout.readline())
        ended = time.monotonic()
    assert made >= 0.9 * objects, f"the foreign merge has read {made} of {objects} objects"
    return paced.between(began, ended)


class PacedProducer:
    """Producer with acks=all at a steady pace, on a thread. An open loop: a record's time counts from when it
    was due until it was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        self._topic, self._every_s = topic, 1 / rate
        self._over = threading.Event()
        self._sent = 0
        self._found: list[tuple[float, float]] = []
        self._failed: list[object] = []
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        value, due = bytes(VALUE_BYTES), time.monotonic()
        while not self._over.is_set():
            while time.monotonic() >= due:
                self._producer.produce(self._topic, value, on_delivery=partial(self._delivered, due))
                self._sent += 1
                due += self._every_s
            self._producer.poll(min(max(due - time.monotonic(), 0), 0.001))
        self._producer.flush(30)

    def _delivered(self, due: float, error: object, _: object) -> None:
        self._found.append((due, time.monotonic() - due))
        if error is not None:
            self._failed.append(error)

    def felt(self, seconds: float) -> Felt:
        """Return the times of the records that are due in the next `seconds`."""
        began = time.monotonic()
        time.sleep(seconds)
        return self.between(began, began + seconds)

    def between(self, began: float, ended: float) -> Felt:
        """Return the times of the records that were due between two moments."""
        sent = self._sent
        wait_until("all acknowledgements", lambda: len(self._found) >= sent, 60)
        assert not self._failed, self._failed[:3]
        return felt_of(took for due, took in list(self._found) if began <= due < ended)


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
    """Return GETs, seconds and records of a count by Spark, medians; None without Spark."""
    if spark is None:
        return None
    requests, times, records = [], [], 0
    for _ in range(rounds):
        with counting_proxy(endpoint) as (through, methods):
            reader = spark.read.format("firn").options(url=store.url, subscribe=TOPIC, endpoint=through)
            began = time.monotonic()
            records = reader.load().count()
            times.append(time.monotonic() - began)
            requests.append(methods["GET"])
    return round(statistics.median(requests)), statistics.median(times), records


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
