"""`firn console` beside a real node and store: which tier answered, records of every kind, what it asks of
them, and both when they hang, refuse or die.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from service.console.figures import Figures
from tests.support.clients import Admin, Confluent, Row
from tests.support.console import Scene, console_node, console_of, fill
from tests.support.faults import Fault, FaultProxy, fault_proxy
from tests.support.processes import free_port, wait_until
from tests.support.stores import Store, moto_server, new_bucket
from tests.support.tiers import EARLIEST_LOCAL, offset

READING = {
    "API_VERSIONS", "DESCRIBE_CLUSTER", "DESCRIBE_CONFIGS", "DESCRIBE_HEALTH", "DESCRIBE_LOG_DIRS",
    "DESCRIBE_QUORUM", "DESCRIBE_TOPIC_PARTITIONS", "FETCH", "LIST_GROUPS", "LIST_OFFSETS",
    "LIST_PARTITION_REASSIGNMENTS", "METADATA",
}  # fmt: skip
"""What the console may ask of a node."""
PATHS = (
    "/", "/topics", "/topic?name=readings", "/topic?name=readings&partition=0&scale=time", "/bucket", "/cold",
    "/records?topic=readings&where=start", "/records?topic=audit&where=end", "/configuration",
    "/configuration?topic=readings", "/series",
    "/records/download?topic=readings&partition=0&offset=0&part=lines",
)  # fmt: skip


class Answer(NamedTuple):
    status: int
    text: str
    took_s: float


def ask(url: str, path: str) -> Answer:
    began = time.monotonic()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode("utf-8", "replace"), time.monotonic() - began)
    finally:
        connection.close()


def says(url: str, path: str, words: str) -> bool:
    return words in ask(url, path).text


def is_a_page(url: str, path: str) -> bool:
    return ask(url, path).status == 200


class Place(NamedTuple):
    """A node with records in both tiers, its store, the console's way to that, and the console."""

    scene: Scene
    store: Store
    proxy: FaultProxy
    url: str
    folder: Path

    @property
    def bootstrap(self) -> str:
        return self.scene.node.bootstrap

    def figures(self) -> Figures:
        """What the node counts, up to now: for a second it gives everybody the same text."""
        looks = [self._look()]

        def is_newer() -> bool:
            looks.append(self._look())
            return looks[-1].samples != looks[0].samples

        wait_until("newer figures", is_newer)
        return looks[-1]

    def _look(self) -> Figures:
        text = ask(self.scene.node.settings["firn.http.listener"], "/metrics").text
        return Figures(0, text, {}, [])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("tiers")
    with moto_server(folder) as endpoint, fault_proxy(endpoint) as proxy:
        store = new_bucket(endpoint, f"console-{os.getpid()}")
        node = console_node(folder / "node", store)
        try:
            node.start()
            scene = fill(node, partitions=1, count=6_000)
            options = ("--survey-every", "1", "--endpoint", proxy.endpoint)
            with console_of(node.bootstrap, folder, *options, env=store.env) as url:
                yield Place(scene, store, proxy, url, folder)
        finally:
            node.close()


@pytest.fixture
def healthy(place: Place) -> Iterator[Place]:
    yield place
    place.proxy.mode, place.proxy.plan = Fault.PASS, None
    wait_until("the store to be there again", lambda: "cannot be read" not in ask(place.url, "/bucket").text)


def tiers_told(page: str) -> list[str]:
    return re.findall(r'data-tier="(\w+)"', page)


def test_the_tier_that_answered_is_the_one_that_the_node_counted(place: Place) -> None:
    border = offset(place.bootstrap, "readings", 0, EARLIEST_LOCAL)
    for at, tier, other in ((0, "bucket", "local"), (border, "local", "bucket")):
        before = place.figures()
        found = ask(place.url, f"/records?topic=readings&partition=0&where=offset&at={at}&most=20")

        def grown(tier: str, before: Figures = before) -> float:
            name = "firn_fetched_bytes_total"
            return place.figures().one(name, tier=tier) - before.one(name, tier=tier)

        assert tiers_told(found.text) == ["disk" if tier == "local" else tier]
        assert grown(tier) > 0
        assert grown(other) == 0
        (told,) = re.findall(r"answered in (\d+)\.0 ms", found.text) or ["0"]
        assert int(told) <= 1000 * found.took_s


def test_a_page_over_the_border_names_both_tiers_and_each_record_its_own(place: Place) -> None:
    border = offset(place.bootstrap, "readings", 0, EARLIEST_LOCAL)
    found = ask(place.url, f"/records?topic=readings&partition=0&where=offset&at={border - 5}&most=20")
    assert tiers_told(found.text) == ["bucket", "disk"]
    rows = re.findall(
        r'class="offset" title="[^"]*">([\d,]+)</a><span class="badge (ice|water)">', found.text
    )
    assert [(int(at.replace(",", "")), kind) for at, kind in rows] == [
        (at, "ice" if at < border else "water") for at in range(border - 5, border + 15)
    ]


def test_records_of_every_kind_are_shown_and_come_down_as_they_are(place: Place) -> None:
    Admin(place.bootstrap).create("kinds", 1, max_message_bytes=str(16 << 20))
    large = os.urandom(10 << 20)
    rows = [
        Row(0, 1_700_000_000_000, None, None),
        Row(0, 1_700_000_000_001, b"", b""),
        Row(0, 1_700_000_000_002, b"\xff\xfe", b"\x80 not text"),
        Row(0, 1_700_000_000_003, b"k", b"v", (("same", b"1"), ("same", b"2"), ("none", None), ("", b""))),  # type: ignore[arg-type]
        Row(0, 1_700_000_000_004, b"k", large),
        Row(0, 1_700_000_000_005, b"k", b"v", tuple((f"h{n}", b"") for n in range(500))),
    ]
    large_too: dict[str, Any] = {"message.max.bytes": 20 << 20}
    Confluent().produce(place.bootstrap, "kinds", rows, **large_too)
    codecs = ("gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        packed = f"packed-{codec} ".encode() * 50
        Confluent().produce(place.bootstrap, "kinds", [Row(0, 1_700_000_000_006, b"k", packed)], codec)
    for form in ("auto", "text", "json", "hex"):
        found = ask(place.url, f"/records?topic=kinds&where=start&most=50&form={form}")
        assert found.status == 200
        assert found.text.count('class="record"') == len(rows) + len(codecs)
        assert len(found.text) < 1 << 20
    found = ask(place.url, "/records?topic=kinds&where=start&most=50")
    for words in (
        "null",
        "empty",
        "10.5 MB in all",
        *(f"packed-{codec}" for codec in codecs),
        "and 400 more headers",
        ">same</dt>",
    ):
        assert words in found.text
    assert found.text.count(">same</dt>") == 2
    connection = http.client.HTTPConnection(place.url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/records/download?topic=kinds&partition=0&offset=4&part=value")
        answer = connection.getresponse()
        assert answer.read() == large
        assert answer.headers["content-disposition"] == 'attachment; filename="value-0-4.bin"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert ask(place.url, "/records/download?topic=kinds&partition=0&offset=0&part=value").status == 404
    lines = ask(place.url, "/records/download?topic=kinds&partition=0&offset=5&part=lines").text.splitlines()
    assert len(json.loads(lines[0])["headers"]) == 500


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topic?name=nobodys", 404),
        ("/topic?name=a%2Fb", 404),
        ("/topic", 404),
        ("/topic?name=readings&partition=7", 404),
        ("/topic?name=readings&partition=-1", 404),
        ("/topic?name=readings&partition=NaN", 404),
        ("/topic?name=readings&page=" + "9" * 40, 200),
        ("/topics?page=" + "9" * 40, 200),
        ("/topics?q=%FF%00", 200),
        ("/records?topic=nobodys", 404),
        ("/records?topic=readings&partition=x", 400),
        ("/records?topic=readings&partition=7", 404),
        ("/records?topic=readings&partition=0&where=offset&at=" + "9" * 40, 400),
        ("/records?topic=readings&partition=0&where=offset&at=9223372036854775807", 200),
        ("/records?topic=readings&where=time&at=999999999999999999", 200),
        ("/records/download?topic=readings&partition=0&offset=NaN&part=value", 404),
        ("/records/download?topic=readings&partition=0&offset=1e3&part=value", 404),
        ("/records/download?topic=readings&partition=0&offset=0&part=../x", 404),
        ("/configuration?node=99", 404),
        ("/configuration?node=NaN", 404),
        ("/configuration?topic=nobodys", 404),
        ("/bucket?topic=nobodys", 200),
    ],
)
def test_missing_pages_answer_404(place: Place, path: str, status: int) -> None:
    found = ask(place.url, path)
    assert found.status == status
    assert "Traceback" not in found.text


def test_the_console_sends_only_reads(place: Place) -> None:
    """By the node's own count of requests, and by what goes to the store."""
    before = place.figures()
    for path in PATHS:
        assert ask(place.url, path).status == 200, path
    seen = len(place.proxy.seen)
    wait_until("one more survey", lambda: len(place.proxy.seen) > seen + 5)
    after = place.figures()
    name = "firn_request_handling_seconds_count"
    asked = {api for api in after.values(name, "api") if after.one(name, api=api) > before.one(name, api=api)}
    assert asked - READING == set()
    assert {one.method for one in place.proxy.seen} <= {"GET", "HEAD"}


def test_a_bucket_without_permission_says_which_one_is_needed(healthy: Place) -> None:
    healthy.proxy.mode = Fault.DENIED
    for permission in ("s3:GetObject", "s3:GetLifecycleConfiguration", "s3:ListBucketMultipartUploads"):
        words = f"{permission} is needed"
        wait_until(words, partial(says, healthy.url, "/bucket", words))
    topic = "/topic?name=readings"  # what it has read it shows for some seconds
    wait_until("the topic", lambda: "s3:GetObject is needed" in ask(healthy.url, topic).text)
    healthy.proxy.plan = lambda seen: Fault.DENIED if "list-type" in seen.path else Fault.PASS
    wait_until("the listing", lambda: "s3:ListBucket is needed" in ask(healthy.url, "/bucket").text)


def test_a_store_that_hangs_holds_up_its_own_pages_alone(healthy: Place) -> None:
    healthy.proxy.mode = Fault.HANG
    Admin(healthy.bootstrap).create("wide", 40, remote_storage_enable="true")
    with ThreadPoolExecutor(12) as pool:
        topics = [pool.submit(ask, healthy.url, "/topic?name=readings") for _ in range(12)]
        others = [
            ask(healthy.url, path) for path in ("/topics", "/", "/configuration", "/records?topic=audit")
        ]
        found = [one.result() for one in topics]
    assert {one.status for one in (*others, *found)} == {200}
    assert max(one.took_s for one in others) < 4  # the store is given up after eight
    assert all("bucket" in one.text for one in found)


def test_a_node_that_dies_while_pages_are_drawn(tmp_path: Path) -> None:
    """Every answer is a page or says what is wrong, none is a bug; and when it is back, so are they."""
    node = console_node(tmp_path / "node", None)
    try:
        node.start()
        Admin(node.bootstrap).create("some", 30)
        rows = [Row(n % 30, 1_700_000_000_000, b"k", bytes(1000)) for n in range(3_000)]
        Confluent().produce(node.bootstrap, "some", rows)
        with console_of(node.bootstrap, tmp_path) as url:
            paths = ("/", "/topics", "/topic?name=some", "/records?topic=some&where=start", "/configuration")
            done, statuses = threading.Event(), dict[str, set[int]]()

            def look(path: str) -> None:
                while not done.is_set():
                    statuses.setdefault(path, set()).add(ask(url, path).status)

            with ThreadPoolExecutor(10) as pool:
                looking = [pool.submit(look, path) for path in paths * 2]
                try:
                    wait_until("a page of each", lambda: all(200 in statuses.get(path, ()) for path in paths))
                    node.kill()
                    is_told = [path for path in paths if path != "/"]  # which has figures of its own
                    wait_until("its end", lambda: all(503 in statuses[path] for path in is_told))
                finally:
                    done.set()
                for one in looking:
                    one.result()
            assert set().union(*statuses.values()) == {200, 503}
            node.start()
            for path in paths:
                wait_until(path, partial(is_a_page, url, path))
        assert "Traceback" not in (tmp_path / "console.log").read_text()
    finally:
        node.close()


def test_a_broker_that_hangs_is_named_and_not_waited_for_by_every_page(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with console_of(address, tmp_path) as url:
            with ThreadPoolExecutor(40) as pool:
                found = list(pool.map(lambda _: ask(url, "/topics"), range(80)))
            assert {one.status for one in found} == {503}
            assert any("did not answer in time" in one.text for one in found)
            # What is more than it works on at a time is told to come again.
            assert any("too many requests" in one.text for one in found)
            assert ask(url, "/topics").took_s < 5
            assert "Traceback" not in (tmp_path / "console.log").read_text()


def test_event_streams_are_bounded_and_end_with_their_client(place: Place) -> None:
    address = place.url.removeprefix("http://").split(":")

    def stream() -> tuple[socket.socket, int]:
        one = socket.create_connection((address[0], int(address[1])), 10)
        one.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return one, int(one.recv(100).split()[1])

    opened = [stream() for _ in range(50)]
    assert sorted({status for _, status in opened}) == [200, 503]
    assert sum(status == 200 for _, status in opened) == 32
    for one, _ in opened:
        one.close()

    def is_there_room() -> bool:
        one, status = stream()
        one.close()
        return status == 200

    wait_until("room for another", is_there_room)


def test_a_node_that_talks_nonsense_is_named(tmp_path: Path) -> None:
    """Nothing that a node's listener says ends the console."""
    nonsense: dict[str, Any] = {"/metrics": "", "/readyz": "", "/turns": "", "/version": ""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = nonsense[self.path].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    ready, turns, version = '{"ready": true, "checks": {}}', '{"longest": []}', '{"version": "1"}'
    bad_metrics = (
        'firn_loop_turn_seconds_bucket 3\nfirn_loop_turn_seconds_bucket{le="x"} 3\n'
        "firn_produced_bytes_total nan\n"
    )
    endless = '{"longest": [{"took_ms": 1' + "0" * 400 + ', "ended_s_ago": 1, "who": 1}]}'
    cases = [
        (bad_metrics, ready, turns, version, "ready"),
        ("", "[" * 100_000, turns, version, "not the response of a node"),
        ("", ready, endless, version, "not the response of a node"),
        ("", '{"ready": 1, "checks": [1]}', turns, version, "not the response of a node"),
        ("", ready, "{}", version, "not the response of a node"),
        ("", ready, turns, "7", "not the response of a node"),
    ]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for number, (metrics, health, longest, told, words) in enumerate(cases):
            nonsense.update({"/metrics": metrics, "/readyz": health, "/turns": longest, "/version": told})
            listener = f"1=http://127.0.0.1:{server.server_address[1]}"
            folder = tmp_path / str(number)
            folder.mkdir()
            with console_of(f"127.0.0.1:{free_port()}", folder, "--metrics", listener) as url:
                wait_until(words, partial(says, url, "/", words))
                assert ask(url, "/cold").status == 200
    finally:
        server.shutdown()
        server.server_close()
