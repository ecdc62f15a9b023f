"""Screenshots of the console's main pages: `python -m tests.browser.shots [FOLDER]` (docs/images)."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.browser.test_changes import sign_in
from tests.support.browser import Window, chromium_of
from tests.support.clients import Admin, Confluent
from tests.support.console import Scene, console_node, console_of, fill, readings
from tests.support.console_thread import ConsoleThread
from tests.support.limping import limping
from tests.support.processes import REPOSITORY, wait_until
from tests.support.signed_in import TOKEN
from tests.support.stores import moto_server, new_bucket

FOLDER = REPOSITORY / "docs" / "images"
WATCHED_S = 40
"""So long is something going on before the first picture: charts want a past."""
GROUP = "billing"
SHOTS = (
    ("overview", "/", "light", 1280, 900),
    ("overview-dark", "/", "dark", 1280, 900),
    ("topic", "/topic?name=readings", "light", 1280, 560),
    ("topic-dark", "/topic?name=readings&partition=1&scale=bytes", "dark", 1280, 760),
    ("records", "/records?topic=readings&partition=0&where=offset&at=500&most=20", "light", 1280, 640),
    ("group", f"/group?id={GROUP}", "light", 1280, 820),
    ("records-all", "/records?topic=readings&most=20", "dark", 1280, 640),
    ("topics", "/topics", "light", 1280, 480),
    ("groups", "/groups", "light", 1280, 420),
    ("transactions", "/transactions", "light", 1280, 620),
    ("bucket", "/bucket", "light", 1280, 860),
    ("cold", "/cold", "light", 1280, 820),
    ("configuration", "/configuration", "light", 1280, 700),
    ("narrow", "/topic?name=readings", "light", 390, 844),
)
ACT_SHOTS = (
    (
        "reset",
        "/change/reset-offsets",
        {"group": "paused", "mode": "shift", "at": "-100"},
        "light",
        1280,
        800,
    ),
    ("confirm-dark", "/change/delete-topic", {"topic": "audit"}, "dark", 1280, 620),
)
"""Previews: a form, what is filled in"""
CLUSTER_SHOTS = (("cluster", "/cluster", "light", 1280, 1250),)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="firn-shots-") as made, moto_server(Path(made)) as endpoint:
        store = new_bucket(endpoint, f"shots-{os.getpid()}")
        node = console_node(Path(made) / "node", store)
        try:
            node.start()
            scene = fill(node)
            Admin(node.bootstrap).create("payments", scene.partitions)
            options = ("--survey-every", "5")
            with console_of(node.bootstrap, Path(made), *options, env=store.env) as url:
                shoot(url, scene, folder)
        finally:
            node.close()
    shoot_cluster(folder)


def shoot(url: str, scene: Scene, folder: Path) -> None:
    done = threading.Event()
    going_on = [threading.Thread(target=_live, args=(scene, done))]
    going_on.append(threading.Thread(target=_transactions, args=(scene, done)))
    going_on += [threading.Thread(target=_member, args=(scene, name, done)) for name in ("ledger", "mailer")]
    for thread in going_on:
        thread.start()
    try:
        wait_until("the group", lambda: _is_there(f"{url}/group?id={GROUP}"), 60)
        time.sleep(WATCHED_S)
        with chromium_of() as browser:
            for name, path, scheme, width, height in SHOTS:
                _shot(browser, url, folder / f"console-{name}.png", path, scheme, width, height)
            shoot_acts(browser, scene, folder)
    finally:
        done.set()
        for thread in going_on:
            thread.join()


def shoot_acts(browser: Any, scene: Scene, folder: Path) -> None:
    """Previews of changes, of a group that has stopped reading."""
    settings = {"bootstrap.servers": scene.node.bootstrap, "group.id": "paused", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    places = [
        confluent_kafka.TopicPartition(scene.tiered, n, 4_000 + 60 * n) for n in range(scene.partitions)
    ]
    consumer.assign(places)
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    with ConsoleThread(scene.node.bootstrap, token=TOKEN, allow_changes=True) as console:
        for name, path, fields, scheme, width, height in ACT_SHOTS:
            looking = Window(browser, console.url, color_scheme=scheme)
            looking.page.set_viewport_size({"width": width, "height": height})
            page = sign_in(looking, path)
            for field, value in fields.items():
                if field == "mode":
                    page.select_option(f"[name={field}]", value)
                else:
                    page.fill(f"[name={field}]", value)
            page.click("main button")
            looking.until_it_says("nothing has been done yet")
            page.screenshot(path=folder / f"console-{name}.png")
            looking.close()


def shoot_cluster(folder: Path) -> None:
    """Three nodes of which one has died."""
    with (
        tempfile.TemporaryDirectory(prefix="firn-shots-") as made,
        limping(Path(made)) as cluster,
        console_of(cluster.alive, Path(made), "--survey-every", "0") as url,
        chromium_of() as browser,
    ):
        for name, path, scheme, width, height in CLUSTER_SHOTS:
            _shot(browser, url, folder / f"console-{name}.png", path, scheme, width, height)


def _live(scene: Scene, done: threading.Event) -> None:
    """Producers that come and go, and a reader of old records."""
    turn = 0
    while not done.is_set():
        turn += 1
        now_ms = int(time.time() * 1000)
        rows = readings(40 + 90 * (turn % 4), scene.partitions, now_ms, 1000, seed=turn)
        Confluent().produce(scene.node.bootstrap, scene.tiered, rows)
        if turn % 3 == 0:
            Confluent().read(scene.node.bootstrap, scene.tiered, turn % scene.partitions, 100, 400)
        done.wait(0.7)


def _transactions(scene: Scene, done: threading.Event) -> None:
    """Producers with open, committed and no transactions."""
    producers = []
    for n, transactional_id in enumerate(("billing-0", "billing-1", "ledger-export", "mailer-2", "mailer-3")):
        one = confluent_kafka.Producer(
            {
                "bootstrap.servers": scene.node.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 600_000,
            }
        )
        one.init_transactions(60)
        if n < 4:
            one.begin_transaction()
            for partition in range(scene.partitions):
                one.produce("payments", b"amount %d" % n, partition=partition if n else 0)
            one.flush(30)
        if n == 2:
            one.commit_transaction(30)
        producers.append(one)
    done.wait()
    for n in (0, 1, 3):
        producers[n].abort_transaction(30)


def _is_there(page: str) -> bool:
    """Whether the page is; a group's lag is followed from the first look on."""
    try:
        with urllib.request.urlopen(page, timeout=30):
            return True
    except urllib.error.HTTPError:
        return False


def _member(scene: Scene, client_id: str, done: threading.Event) -> None:
    """A member of a group that reads slower than is written at times, and commits."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": scene.node.bootstrap,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "client.id": client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([scene.tiered])
        while not done.is_set():
            if consumer.consume(60, timeout=0.5):
                consumer.commit(asynchronous=False)
            done.wait(0.3)
    except confluent_kafka.KafkaException as e:
        print(f"{client_id}: {e}", file=sys.stderr)
    finally:
        consumer.close()


def _shot(browser: Any, url: str, file: Path, path: str, scheme: str, width: int, height: int) -> None:
    looking = Window(browser, url, color_scheme=scheme)
    try:
        looking.page.set_viewport_size({"width": width, "height": height})
        page = looking.open(path)
        page.wait_for_timeout(700)
        page.screenshot(path=file)
        print(file.name, file.stat().st_size)
    finally:
        looking.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
