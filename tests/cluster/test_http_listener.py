"""Metrics and health over HTTP from a real node, and hostile HTTP clients."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from service.console.families import FAMILIES
from service.console.server import CONNECTION_S, MOST_CONNECTIONS
from tests.cluster.conftest import Bystander
from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.faults import Fault, fault_proxy
from tests.support.processes import FIRN, Node, free_port, wait_until
from tests.support.stores import Store
from tests.support.tiers import LATEST_TIERED, offset
from tests.support.wire import RawConnection, encode_request, produce, schema

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def families_of(text: str) -> list[Any]:
    """What Prometheus' own parser of OpenMetrics makes of it."""
    parse: Any = text_string_to_metric_families
    return list(parse(text))


class Http:
    """The HTTP listener of a node."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> tuple[int, str]:
        accept = {"Accept": "application/openmetrics-text"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=accept)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def samples(self) -> Samples:
        """What `/metrics` says, read by Prometheus' own parser of OpenMetrics."""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families_of(text)
            for sample in family.samples
        }

    def one(self, name: str, **labels: str) -> float:
        return self.samples().get((name, frozenset(labels.items())), 0.0)

    def values(self, name: str) -> list[float]:
        """Of all that bear the name, whatever their labels."""
        return [value for (found, _), value in self.samples().items() if found == name]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 20)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Node, Http]]:
    http = Http(free_port())
    node = Node(
        tmp_path,
        {"firn.http.listener": f":{http.port}", "firn.metrics.partitions.enable": "true"},
    )
    try:
        yield node.start(), http
    finally:
        node.close()


def test_requests_of_clients_are_counted(watched: tuple[Node, Http]) -> None:
    node, http = watched
    Admin(node.bootstrap).create("topic", 3)
    with RawConnection(node.bootstrap) as connection:
        for _ in range(7):
            assert produce(connection, "topic", 1, batch([b"a", b"b"])).error_code == 0
        assert produce(connection, "nowhere", 0, batch([b"a"])).error_code == 3
    wait_until("a scrape after the last request", lambda: http.one("firn_produced_records_total") == 14)
    found = http.samples()

    def one(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert one("firn_request_handling_seconds_count", api="PRODUCE") == 8
    assert one("firn_request_errors_total", api="PRODUCE", error="unknown_topic_or_partition") == 1
    assert one("firn_produced_batches_total") == 7
    assert one("firn_partitions", state="online") == 3
    assert one("firn_segments", tier="local") == 3
    assert one("firn_log_bytes", tier="local") == one("firn_produced_bytes_total")
    assert one("firn_partition_end_offset", topic="topic", partition="1") == 14
    assert one("firn_partition_end_offset", topic="topic", partition="2") == 0
    assert one("firn_metadata_topics") == 1
    assert one("firn_loop_turn_seconds_count") > 0
    assert one("process_resident_memory_bytes") > 1 << 20


def test_rendered_metrics_are_in_the_table(watched: tuple[Node, Http]) -> None:
    _, http = watched
    families = families_of(http.get("/metrics")[1])
    assert families
    for family in families:
        assert FAMILIES[family.name].kind == family.type
        assert FAMILIES[family.name].help == family.documentation


def test_a_waiting_fetch_waits_in_the_metrics_too(watched: tuple[Node, Http]) -> None:
    node, http = watched
    Admin(node.bootstrap).create("topic", 1)
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1000,
        current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    request = module.FetchRequest(
        replica_id=-1, max_wait=timedelta(seconds=60), min_bytes=1, max_bytes=1000, isolation_level=0,
        session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic="topic", partitions=(part,)),),
    )  # fmt: skip
    with RawConnection(node.bootstrap) as consumer, RawConnection(node.bootstrap) as producer:
        consumer.send_frame(encode_request(request))
        wait_until("the fetch to wait", lambda: http.one("firn_fetches_waiting") == 1)
        assert produce(producer, "topic", 0, batch([b"a"])).error_code == 0
        consumer.receive_frame()
    wait_until(
        "the fetch to be counted", lambda: http.one("firn_fetched_partitions_total", tier="local") == 1
    )
    found = http.samples()
    assert found["firn_fetches_waiting", frozenset()] == 0
    assert found["firn_fetch_wait_seconds_count", frozenset({("reason", "records")})] == 1
    assert found["firn_request_later_seconds_count", frozenset({("api", "FETCH")})] == 1


def test_a_node_tells_how_it_is(watched: tuple[Node, Http]) -> None:
    _, http = watched
    assert http.get("/healthz") == (200, "ok\n")
    status, text = http.get("/readyz")
    assert status == 200
    assert {one["state"] for one in json.loads(text)["checks"].values()} == {"ok"}
    assert http.json("/version")["version"]
    assert http.get("/nowhere")[0] == 404


def test_a_store_that_is_away_degrades_a_node_that_serves_on(
    start_node: NodeFactory, moto_store: Store
) -> None:
    http = Http(free_port())
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(
            moto_store.through(proxy.endpoint), **{"firn.http.listener": f"127.0.0.1:{http.port}"}
        )
        Admin(node.bootstrap).create("topic", 1, remote_storage_enable="true", internal_segment_bytes="200")
        with RawConnection(node.bootstrap) as connection:
            for _ in range(3):
                assert produce(connection, "topic", 0, batch([bytes(60)])).error_code == 0
        wait_until("offload", lambda: offset(node.bootstrap, "topic", 0, LATEST_TIERED) == 1)
        wait_until("segments in the bucket", lambda: http.one("firn_segments", tier="bucket") == 2)
        wait_until("copies to be counted", lambda: http.one("firn_tiering_copied_segments_total") == 2)
        assert http.one("firn_store_call_seconds_count", client="tiering", call="put_stream") >= 2
        assert http.json("/readyz")["checks"]["store"]["state"] == "ok"
        proxy.mode = Fault.UNKNOWN_KEY
        with RawConnection(node.bootstrap) as connection:
            for _ in range(3):
                assert produce(connection, "topic", 0, batch([bytes(60)])).error_code == 0
        wait_until("the store to be missed", lambda: http.one("firn_store_reachable", client="tiering") == 0)
        wait_until("offload to be behind", lambda: http.one("firn_tiering_lag_segments") == 3)
        assert http.one("firn_tiering_lag_bytes") > 0
        wait_until("the node to say so", lambda: _store(http)["state"] == "degraded")
        assert "InvalidAccessKeyId" in _store(http)["why"]
        assert http.get("/readyz")[0] == 200
        proxy.mode = Fault.PASS
        wait_until("offload to catch up", lambda: http.one("firn_tiering_lag_segments") == 0)
        wait_until("the node to say so", lambda: _store(http)["state"] == "ok")


def test_a_committed_manifest_that_is_gone_is_named_until_its_archive_is_given_up(
    start_node: NodeFactory, disk_store: Store
) -> None:
    http = Http(free_port())
    node = start_node(disk_store, **{"firn.http.listener": f"127.0.0.1:{http.port}"})
    admin = Admin(node.bootstrap)
    admin.create("topic", 1, remote_storage_enable="true", internal_segment_bytes="200")
    with RawConnection(node.bootstrap) as connection:
        for _ in range(3):
            assert produce(connection, "topic", 0, batch([bytes(60)])).error_code == 0
    wait_until("offload", lambda: offset(node.bootstrap, "topic", 0, LATEST_TIERED) == 1)
    node.stop()
    bucket = Path(disk_store.url.removeprefix("file://"))
    for path in bucket.glob("data/**/*"):
        if path.is_file():
            path.unlink()
    node.start()
    wait_until("the node to say so", lambda: _store(http)["state"] == "degraded")
    named = "nothing is copied of 1 partitions, topic-0 first: the committed manifest is gone"
    assert named in _store(http)["why"]
    admin = Admin(node.bootstrap)
    for future in admin.client.delete_records([TopicPartition("topic", 0, 2)]).values():
        assert future.result(30).low_watermark == 2
    wait_until("the node to say that all is well", lambda: _store(http)["state"] == "ok")
    with RawConnection(node.bootstrap) as connection:
        for _ in range(3):
            assert produce(connection, "topic", 0, batch([bytes(60)])).error_code == 0
    wait_until("what is hot to be copied", lambda: offset(node.bootstrap, "topic", 0, LATEST_TIERED) == 4)


def _store(http: Http) -> Any:
    return http.json("/readyz")["checks"]["store"]


def test_hostile_http_clients_do_not_disturb_others(watched: tuple[Node, Http]) -> None:
    node, http = watched
    Admin(node.bootstrap).create("topic", 1)
    Admin(node.bootstrap).create("many", 200)
    bystander = Bystander(node.bootstrap, "topic")
    with ExitStack() as stack:
        for _ in range(3 * MOST_CONNECTIONS):
            slow = stack.enter_context(http.connect())
            slow.sendall(b"GET /metrics HT")
        for _ in range(MOST_CONNECTIONS // 2):
            deaf = stack.enter_context(http.connect())
            deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        for garbage in (
            b"\x00\xff" * 500,
            b"GET /" + b"a" * 100_000,
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
        ):
            with http.connect() as one:
                one.sendall(garbage)
                one.shutdown(socket.SHUT_WR)
                while one.recv(1 << 16):
                    pass
        with http.connect() as one:
            one.sendall(
                b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + bytes(1000)
            )
            assert one.recv(100).startswith(b"HTTP/1.1 405")
        assert http.get("/healthz") == (200, "ok\n")
        assert ("firn_produced_records_total", frozenset()) in http.samples()
        sockets = sum(name.startswith("socket:") for name in node.open_files())
    bystander.check()
    assert sockets < 2 * MOST_CONNECTIONS
    assert node.stderr_path.read_text().count("Traceback") == 0, node.log()


def test_requests_sent_ahead_wait_for_their_reader(watched: tuple[Node, Http]) -> None:
    """What nobody reads is not answered; the answers of a node without topics are small."""
    node, http = watched
    paths = ("/metrics", "/readyz", "/turns", "/tiering", "/version", "/nothing")
    http.get("/metrics")
    before = node.rss_bytes()
    with ExitStack() as stack:
        for path in paths:
            deaf = stack.enter_context(http.connect())
            deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 20_000)
        for _ in range(500):  # the loop has had as many turns, and more
            assert http.get("/healthz") == (200, "ok\n")
    assert node.peak_rss_bytes() - before < 24 << 20


@pytest.mark.thorough
def test_a_connection_that_never_asks_is_cut(watched: tuple[Node, Http]) -> None:
    _, http = watched
    with http.connect() as silent:
        silent.settimeout(CONNECTION_S + 60)
        assert silent.recv(1) == b""


def test_an_address_that_is_taken_refuses_the_start(tmp_path: Path, watched: tuple[Node, Http]) -> None:
    _, http = watched
    other = Node(tmp_path / "other", {"firn.http.listener": f":{http.port}"})
    with pytest.raises(AssertionError, match=f"firn.http.listener: 127.0.0.1:{http.port}"):
        other.start()


def test_the_last_thing_heard_of_a_node_is_that_it_does_not_serve(tmp_path: Path) -> None:
    http = Http(free_port())
    node = Node(tmp_path, {"firn.http.listener": f":{http.port}"}).start()
    assert http.json("/readyz")["ready"]
    node.stop()
    with pytest.raises(urllib.error.URLError):
        http.get("/readyz")


def test_firn_top_shows_what_the_node_tells(watched: tuple[Node, Http]) -> None:
    node, http = watched
    Admin(node.bootstrap).create("topic", 1)
    command = [str(FIRN), "top", "--url", f"http://127.0.0.1:{http.port}", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["health"]["ready"]
    assert found["metrics"]["firn_metadata_topics"] == [{"labels": {}, "value": 1.0}]
    with subprocess.Popen([*command[:-1], "--every", "0.2"], stdout=subprocess.PIPE, text=True) as live:
        assert live.stdout is not None
        lines = iter(live.stdout.readline, "")
        assert next(line for line in lines if line.startswith("CREATE_TOPICS"))
        assert next(line for line in lines if line.startswith("loop: busy"))
        live.kill()
    nobody = subprocess.run([*command[:3], "http://127.0.0.1:1"], capture_output=True, text=True)
    assert nobody.returncode == 1
    assert "firn.http.listener" in nobody.stderr
    assert "Traceback" not in nobody.stderr


def test_a_topic_that_the_store_refuses_is_told_by_name_and_others_tier(
    start_node: NodeFactory, moto_store: Store
) -> None:
    """PUT of one topic's objects answers 403, for twelve partitions: `firn tiers` and `/tiering` say so."""
    http = Http(free_port())
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(
            moto_store.through(proxy.endpoint), **{"firn.http.listener": f"127.0.0.1:{http.port}"}
        )
        for topic, partitions in (("denied", 12), ("fine", 2)):
            Admin(node.bootstrap).create(
                topic, partitions, remote_storage_enable="true", internal_segment_bytes="200"
            )
        topic_id = json.loads(tiers_of(node, "denied"))["topic_id"]
        proxy.plan = lambda seen: (
            Fault.DENIED if seen.method == "PUT" and topic_id in seen.path else Fault.PASS
        )
        with RawConnection(node.bootstrap) as connection:
            for topic, partitions in (("denied", 12), ("fine", 2)):
                for partition in range(partitions):
                    for _ in range(3):
                        assert produce(connection, topic, partition, batch([bytes(60)])).error_code == 0
        wait_until("denied partitions to fail", lambda: http.one("firn_tiering_failing", step="copy") == 12)
        for partition in range(2):
            wait_until(
                "the others to tier",
                partial(_is_tiered, node, "fine", partition),
            )
        assert http.one("firn_tiering_store_pauses_total") == 0
        told = http.json(f"/tiering?topic={topic_id}")
        assert {one["partition"] for one in told["partitions"]} == set(range(12))
        assert all(
            one["why"].startswith("copy: ") and "AccessDenied" in one["why"] for one in told["partitions"]
        )
        assert failing_of(node, "fine") == []
        assert [one[:10] for one in failing_of(node, "denied")] == ["partition "] * 12
        proxy.plan = None
        wait_until("the refused to catch up", lambda: http.one("firn_tiering_failing", step="copy") == 0)
        assert failing_of(node, "denied") == []


def failing_of(node: Node, topic: str) -> list[str]:
    """Of its partitions: what brokers say of their stores, whose last answer may be about another topic,
    stands behind them."""
    found = json.loads(tiers_of(node, topic))["failing"]
    return [one for one in found if not one.startswith("node 1: the store does not answer")]


def tiers_of(node: Node, topic: str) -> str:
    command = [str(FIRN), "tiers", topic, "--json", "--bootstrap-server", node.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _is_tiered(node: Node, topic: str, partition: int) -> bool:
    return offset(node.bootstrap, topic, partition, LATEST_TIERED) == 1
