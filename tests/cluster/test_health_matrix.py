"""One truth about health: what every surface says when something is dead, on three real nodes, as a table.

Each of {a broker, the console's bootstrap, the majority of the controllers, a controller, the store, a disk
that is full, a disk that fails, a node's HTTP listener} is taken away, or hangs, and `/readyz`, `firn cluster
describe`, the console's overview and cluster page, `/metrics` and the alerts have to say so, in the same
words, within `LIMIT_S`. `make health-matrix` prints the table.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support.clients import Admin, Confluent, Row
from tests.support.console import console_of
from tests.support.failing_fsync import FailingFsync
from tests.support.faults import Fault, fault_proxy
from tests.support.processes import FIRN, free_port, wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import wait_in_sync
from tests.support.requirements import promtool
from tests.support.scrapes import RULES, TARGET, Scrape, answered, scrape
from tests.support.small_disk import Ballast, small_disk
from tests.support.stores import moto_server, new_bucket

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

LIMIT_S = float(os.environ.get("HEALTH_LIMIT_S", "15"))
SURFACES = ("readyz", "describe", "overview", "cluster page", "metrics", "alert")
MIB = 1 << 20
TOPIC = "events"
NO_ANSWER = "no answer"
SETTINGS = {
    "firn.disk.check.interval.ms": "200",
    "firn.disk.reserve.bytes": str(16 * MIB),
    "offsets.topic.num.partitions": "3",
    "log.segment.bytes": str(MIB),
    "remote.log.manager.task.interval.ms": "500",
    "min.insync.replicas": "1",
}
TABLE: dict[str, dict[str, str]] = {}
"""Cells by what is dead; the last test prints them."""


class Case(NamedTuple):
    """Something dead. `words`: what all surfaces say, as a pattern; `anchor`: its kind; `watched`: the node
    whose `/readyz` and metrics are read."""

    words: str
    anchor: str
    watched: int
    cells: dict[str, str]


class Nodes:
    """Three nodes, each with an HTTP listener, and a console beside them."""

    def __init__(self, folder: Path, cluster: Cluster, ports: dict[int, int], console: str) -> None:
        self.folder, self.cluster, self.ports, self.console = folder, cluster, ports, console

    @property
    def follower(self) -> int:
        """A node that does not lead the quorum, and is not the console's bootstrap."""
        return next(one for one in (2, 3) if one != self.cluster.leader())

    def get(self, url: str) -> str:
        """The text of a page, or that nobody answers."""
        try:
            with urllib.request.urlopen(url, timeout=4) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as e:
            with e:
                return str(e.read().decode())
        except OSError:
            return NO_ANSWER

    def readyz(self, case: Case) -> str:
        text = self.get(f"http://127.0.0.1:{self.ports[case.watched]}/readyz")
        if text == NO_ANSWER:
            return text
        told = json.loads(text)
        return "\n".join(one["why"] for one in told["checks"].values())

    def describe(self, case: Case) -> str:
        command = [str(FIRN), "cluster", "describe", "--bootstrap-server", self.cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def overview(self, case: Case) -> str:
        return plain(self.get(f"{self.console}/"))

    def cluster_page(self, case: Case) -> str:
        return plain(self.get(f"{self.console}/cluster"))

    def metrics(self, case: Case) -> str:
        text = self.get(f"http://127.0.0.1:{self.ports[case.watched]}/metrics")
        if text == NO_ANSWER:
            return text
        lines = re.findall(r'firn_health_findings\{finding="([^"]+)",severity="[a-z]+"\} [1-9]', text)
        return "\n".join(lines)

    def alert(self, case: Case) -> str:
        """The alerts whose expression is true of this moment's scrape: they are pending, or fire."""
        port = self.ports[case.watched]
        found: Scrape = {("up", frozenset(TARGET.items())): 0.0}
        with contextlib.suppress(OSError):
            found = scrape(port)
        groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
        rules = {
            rule["expr"]: rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule
        }
        folder = self.folder / f"alerts-{threading.get_ident()}"
        folder.mkdir(exist_ok=True)
        true = answered(promtool(), folder, [found], rules)
        return "\n".join(f"{rules[one]} {got}" for one, got in true.items())


def plain(page: str) -> str:
    """A page's words."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


@contextlib.contextmanager
def three(
    folder: Path, settings: dict[str, str], change: Callable[[Member], None] = lambda member: None
) -> Iterator[Nodes]:
    with running(Cluster(folder / "nodes", settings={**SETTINGS, **settings}), folder, change, 1) as nodes:
        yield nodes


@contextlib.contextmanager
def running(
    cluster: Cluster, folder: Path, change: Callable[[Member], None], bootstrap: int
) -> Iterator[Nodes]:
    """`bootstrap`: the broker that the console is told."""
    with cluster:
        ports = {}
        for node_id, member in cluster.members.items():
            ports[node_id] = free_port()
            member.settings["firn.http.listener"] = f"127.0.0.1:{ports[node_id]}"
            change(member)
        cluster.start()
        brokers = cluster.bootstrap.count(",") + 1
        Admin(cluster.bootstrap).replicate(TOPIC, 6, min(brokers, 3), flush_messages="1")
        wait_in_sync(cluster, TOPIC)
        with console_of(cluster.members[bootstrap].bootstrap, folder) as console:
            nodes = Nodes(folder, cluster, ports, console.rstrip("/"))
            wait_until("the console to know all", lambda: "all ok" in nodes.cluster_page(WELL), 30, 0.5)
            yield nodes


WELL = Case("", "", 1, {})


def write(bootstrap: str, count: int = 200) -> None:
    rows = [Row(number % 6, 1, b"k", os.urandom(2000)) for number in range(count)]
    Confluent().produce(bootstrap, TOPIC, rows)


def fill(what: str, nodes: Nodes, case: Case) -> None:
    """Ask all surfaces until each has said it; put down when."""
    began = time.monotonic()
    asked: dict[str, Callable[[Case], str]] = {
        "readyz": nodes.readyz, "describe": nodes.describe, "overview": nodes.overview,
        "cluster page": nodes.cluster_page, "metrics": nodes.metrics, "alert": nodes.alert,
    }  # fmt: skip
    patterns = {
        **dict.fromkeys(SURFACES, case.words),
        "metrics": f"^{case.anchor}$",
        "alert": case.anchor,
        **case.cells,
    }
    last: dict[str, str] = {}

    def until_said(surface: str) -> float | None:
        while time.monotonic() - began < 2 * LIMIT_S:
            last[surface] = asked[surface](case)
            if re.search(patterns[surface], last[surface], re.MULTILINE):
                return time.monotonic() - began
            time.sleep(0.3)
        return None

    with ThreadPoolExecutor(len(SURFACES)) as pool:
        times = dict(zip(SURFACES, pool.map(until_said, SURFACES), strict=True))
    TABLE[what] = {name: "never" if at is None else f"{at:.0f} s" for name, at in times.items()}
    found = re.search(case.words, last["describe"])
    TABLE[what]["words"] = found[0] if found else case.words
    late = {name: last[name][:2000] for name, at in times.items() if at is None or at > LIMIT_S}
    assert not late, late


def test_a_dead_broker_is_said_by_all(tmp_path: Path) -> None:
    with three(tmp_path, {}) as nodes:
        victim = nodes.follower
        nodes.cluster.members[victim].kill()
        words = f"broker {victim} is down: the controller has fenced it"
        fill("a broker", nodes, Case(words, "broker-down", 1, {}))


def test_the_consoles_dead_bootstrap_is_said_by_all(tmp_path: Path) -> None:
    with three(tmp_path, {}) as nodes:
        nodes.cluster.members[1].kill()
        words = "broker 1 is down: the controller has fenced it"
        fill("the console's bootstrap", nodes, Case(words, "broker-down", 2, {}))


def test_a_dead_majority_of_the_controllers_is_said_by_all(tmp_path: Path) -> None:
    with three(tmp_path, {}) as nodes:
        for victim in (2, 3):
            nodes.cluster.members[victim].kill()
        words = r"node 1: no controller has confirmed its metadata for \d+ s: they are stale"
        fill("the majority", nodes, Case(words, "metadata-stale", 1, {}))
        assert not re.search(r"^[123] .* ok ", nodes.describe(WELL), re.MULTILINE), "none of them is ok"


@contextlib.contextmanager
def hanging(*members: Member) -> Iterator[None]:
    """Processes that live and do nothing: SIGSTOP."""
    for member in members:
        assert member.process is not None
        member.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for member in members:
            assert member.process is not None
            member.process.send_signal(signal.SIGCONT)


def test_a_broker_that_hangs_is_said_by_all(tmp_path: Path) -> None:
    with three(tmp_path, {}) as nodes:
        victim = nodes.follower
        with hanging(nodes.cluster.members[victim]):
            words = f"broker {victim} is down: the controller has fenced it"
            fill("a broker hangs", nodes, Case(words, "broker-down", 1, {}))


def test_the_consoles_bootstrap_that_hangs_is_said_by_all(tmp_path: Path) -> None:
    with three(tmp_path, {}) as nodes, hanging(nodes.cluster.members[1]):
        words = "broker 1 is down: the controller has fenced it"
        fill("the console's bootstrap hangs", nodes, Case(words, "broker-down", 2, {}))


def test_a_majority_of_the_controllers_that_hangs_is_said_by_all(tmp_path: Path) -> None:
    with three(tmp_path, {}) as nodes, hanging(*(nodes.cluster.members[one] for one in (2, 3))):
        words = r"node 1: no controller has confirmed its metadata for \d+ s: they are stale"
        fill("the majority hangs", nodes, Case(words, "metadata-stale", 1, {}))
        assert not re.search(r"^[123] .* ok ", nodes.describe(WELL), re.MULTILINE), "none of them is ok"


def test_a_controller_alone_that_dies_is_said_by_all(tmp_path: Path) -> None:
    """Three controllers and two brokers: the leader of the quorum says so at its own HTTP listener."""
    cluster = Cluster.apart(tmp_path / "nodes", (1, 2, 3), (4, 5), SETTINGS)
    with running(cluster, tmp_path, lambda member: None, 4) as nodes:
        leader = cluster.leader()
        victim = next(one for one in (1, 2, 3) if one != leader)
        cluster.members[victim].kill()
        words = rf"voter {victim} has not fetched for \d+ s"
        fill("a controller", nodes, Case(words, "voter-does-not-fetch", leader, {}))
        assert re.search(rf"^{victim} .* does not fetch ", nodes.describe(WELL), re.MULTILINE)


@pytest.mark.parametrize(
    "fault", [Fault.REFUSE, Fault.HANG, Fault.SLOW_DOWN, Fault.UNKNOWN_KEY], ids=lambda one: one.value
)
def test_a_store_that_fails_while_nobody_needs_it_is_said_by_all(tmp_path: Path, fault: Fault) -> None:
    with moto_server(tmp_path) as endpoint, fault_proxy(endpoint) as proxy:
        store = new_bucket(endpoint, "bucket").through(proxy.endpoint)

        def change(member: Member) -> None:
            member.environ = dict(store.env)

        with three(tmp_path, dict(store.node_settings), change) as nodes:
            wait_until("all to have read the prefix", lambda: "owner of the prefix" not in nodes.readyz(WELL))
            proxy.mode = fault
            words = r"node 2: the store does not answer"
            try:
                fill(f"the store: {fault.value}", nodes, Case(words, "store-does-not-answer", 2, {}))
            finally:
                proxy.mode = Fault.PASS
            wait_until("all to hear that it is back", lambda: "the store" not in nodes.describe(WELL), 40)


def test_a_dead_store_is_said_by_all(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        store = new_bucket(stack.enter_context(moto_server(tmp_path)), "bucket")

        def change(member: Member) -> None:
            member.environ = dict(store.env)

        with three(tmp_path, dict(store.node_settings), change) as nodes:
            tiered = {"remote_storage_enable": "true"}
            Admin(nodes.cluster.bootstrap).replicate("tiered", 3, 3, **tiered)
            rows = [Row(number % 3, 1, b"k", os.urandom(2000)) for number in range(3000)]
            Confluent().produce(nodes.cluster.bootstrap, "tiered", rows)
            wait_until("the archive", lambda: len(store.objects()) > 3)
            stack.close()
            Confluent().produce(nodes.cluster.bootstrap, "tiered", rows)
            fill(
                "the store",
                nodes,
                Case(r"node \d: the store does not answer", "store-does-not-answer", 2, {}),
            )


def test_a_full_disk_is_said_by_all(tmp_path: Path) -> None:
    with small_disk(tmp_path / "nodes" / "node-2", 96 * MIB) as disk, three(tmp_path, {}) as nodes:
        left = os.statvfs(disk)
        Ballast(disk, left.f_bavail * left.f_frsize - 6 * MIB)
        words = r"node 2: log directory \S+ is \d+% full"
        fill("a disk full", nodes, Case(words, "log-directory-full", 2, {}))


def test_a_disk_that_fails_is_said_by_all(tmp_path: Path) -> None:
    second = tmp_path / "second"
    device = FailingFsync(tmp_path, str(second))

    def change(member: Member) -> None:
        if member.node_id == 2:
            member.settings["log.dirs"] += f",{second}"
            member.environ = device.env

    with three(tmp_path, {}, change) as nodes:
        write(nodes.cluster.bootstrap)
        device.on()
        write(nodes.cluster.bootstrap)
        words = rf"node 2: log directory {second} is offline"
        fill("a disk dead", nodes, Case(words, "log-directory-offline", 2, {}))


CLOSES_ITS_LISTENER = """
import os, threading, time
from service.console.server import Console  # before the node makes its own

start, found = Console.start, []

async def noted(self, *args):
    found.append(self)
    return await start(self, *args)

def shut(one):  # on the loop; a connection that was taken a moment before may be made a moment later
    one._listening.close()
    for connection in list(one._connections.connections):
        if connection.transport is not None:
            connection.transport.abort()
    one._loop.call_later(0.1, shut, one)

def close():
    while not os.path.exists(SWITCH):
        time.sleep(0.1)
    for one in found:
        one._loop.call_soon_threadsafe(shut, one)

Console.start = noted
threading.Thread(target=close, daemon=True).start()
"""


def test_a_dead_http_listener_is_said_by_all(tmp_path: Path) -> None:
    """Its node lives: a thread within it closes the listener when a file appears."""
    own, switch = tmp_path / "own", tmp_path / "switch"
    own.mkdir()
    (own / "sitecustomize.py").write_text(f"SWITCH = {str(switch)!r}\n{CLOSES_ITS_LISTENER}")

    def change(member: Member) -> None:
        if member.node_id == 2:
            member.environ = {"PYTHONPATH": str(own)}

    with three(tmp_path, {}, change) as nodes:
        switch.touch()
        words = r"node 2: its HTTP listener 127\.0\.0\.1:\d+ does not answer"
        cells = {"readyz": NO_ANSWER, "metrics": NO_ANSWER, "alert": "FirnNodeDown"}
        fill("a node's HTTP listener", nodes, Case(words, "http-listener-does-not-answer", 2, cells))


def test_the_table_is_whole() -> None:
    """Print it, for `-s`."""
    heads = ("dead", *SURFACES, "words")
    rows = [heads, *((what, *(cells[name] for name in heads[1:])) for what, cells in TABLE.items())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads))]
    print()
    for row in rows:
        print("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip())
    assert not [what for what, cells in TABLE.items() if "never" in cells.values()]
