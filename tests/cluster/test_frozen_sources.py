"""A node is frozen (SIGSTOP) with a request on its way to the store, its cluster is restored elsewhere, then
it is woken and the request arrives: nothing of the heir is touched (invariant T21), producers are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from service.remote.format.cut_codec import Cuts, decode_cuts
from tests.conftest import BRISK
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.fsck import fsck
from tests.support.processes import FIRN, Node, wait_until
from tests.support.stores import Store, s3_client
from tests.support.wire import ConnectionLost, RawConnection, end_offset, produce

KAFKA_STORAGE_ERROR: Final = 56
GAP: Final = 1_000_000
SETTINGS: Final = {
    "node.id": "1",
    "firn.cut.interval.ms": "1000",
    "firn.remote.object.grace.ms": "5000",
}
TIERED: Final = {
    "remote_storage_enable": "true",
    "internal_segment_bytes": "4000",
    "retention_bytes": "40000",
    "local_retention_bytes": "1",
}
Step = Callable[[Seen], bool]


def asks(method: str, part: str, end: str = "") -> Step:
    """Return whether a request is of this method, of a key with this part and end."""
    return lambda seen: seen.method == method and part in seen.path and seen.path.split("?")[0].endswith(end)


def deletes(part: str) -> Step:
    return lambda seen: any(part in key for key in seen.keys)


def lists(prefix: str) -> Step:
    return lambda seen: seen.method == "GET" and "list-type" in seen.path and prefix in seen.path


STEPS: Final = {
    "upload of a segment": asks("PUT", "/data/", ".seg"),
    "proof of a segment": asks("GET", "/data/", ".seg"),
    "manifest": asks("PUT", "/manifest/"),
    "look at HEAD": asks("GET", "/data/", "/HEAD"),
    "HEAD": asks("PUT", "/data/", "/HEAD"),
    "look at cluster.json": asks("GET", "/cluster.json"),
    "cluster.json": asks("PUT", "/cluster.json"),
    "topics.json": asks("PUT", "/topics.json"),
    "copy of the metadata": asks("PUT", "/metadata/"),
    "tail": asks("PUT", "/tail/"),
    "proof of a tail": asks("GET", "/tail/"),
    "document of a cut": asks("PUT", "/cut/"),
    "CUT": asks("PUT", "/CUT"),
    "deletion of segments": deletes(".seg"),
    "deletion of manifests": deletes("/manifest/"),
    "sweep": lists("data"),
    "deletion of cuts": deletes("/cut/"),
}


class Hold:
    """A proxy's plan: the first request of one step, once that is wanted, waits until it is let go."""

    def __init__(self, proxy: FaultProxy, step: Step) -> None:
        self._step = step
        self.is_wanted = False
        self.keys: set[str] = set()
        """what the request deletes: dead before the take-over, so the heir names none of it"""
        self.is_held, self.may_go = threading.Event(), threading.Event()
        proxy.plan = self._decide

    def _decide(self, seen: Seen) -> Fault:
        if self.is_wanted and not self.is_held.is_set() and self._step(seen):
            self.keys = {key.partition("/")[2] for key in seen.keys}
            self.is_held.set()
            self.may_go.wait(300)
        return Fault.PASS


@contextmanager
def busy(node: Node) -> Iterator[None]:
    """Have a client produce, and make topics, for as long as the node answers."""
    over = threading.Event()

    def work() -> None:
        number = 0
        while not over.wait(0.02):
            number += 1
            try:
                with RawConnection(node.bootstrap, timeout=2) as connection:
                    produce(connection, "t", 0, batch([b"%d " % number + b"." * 400] * 3))
                if number % 100 == 0:
                    Admin(node.bootstrap).create(f"more-{number}", 1, **TIERED)
            except Exception:  # the node is frozen, or gone
                continue

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def firn(store: Store, *words: str) -> str:
    environ = {**os.environ, **store.env, "AWS_ENDPOINT_URL": store.endpoint or "", "AWS_REGION": "us-east-1"}
    done = subprocess.run(
        [str(FIRN), *words], capture_output=True, text=True, timeout=120, check=False, env=environ
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def cuts_of(store: Store) -> Cuts | None:
    try:
        return decode_cuts(store.read("CUT"))
    except Exception:  # boto3 has no class for it
        return None


def tags(store: Store) -> dict[str, str]:
    """Tag of each object below the prefix."""
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    pages = (
        s3_client(store.endpoint or "")
        .get_paginator("list_objects_v2")
        .paginate(Bucket=bucket, Prefix=prefix)
    )
    return {
        one["Key"].removeprefix(f"{prefix}/"): one["ETag"]
        for page in pages
        for one in page.get("Contents", ())
    }


def heir_of(folder: Path, store: Store) -> Node:
    """Take the prefix over and format a node for the heir."""
    file = folder / "restore.checkpoint"
    said = firn(
        store,
        "restore",
        "apply",
        "--from",
        store.url,
        "--take-over",
        "--force",
        "--brokers",
        "1",
        "-o",
        str(file),
    )
    cluster_id = said.rpartition(" -t ")[2].split()[0]
    node = Node(folder / "heir", {**BRISK, **store.node_settings, **SETTINGS}, store.env)
    settings = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]
    firn(store, "format", *settings, "-t", cluster_id, "--restore", str(file))
    return node


def produced(node: Node, value: bytes) -> int:
    """Produce a record to the node in the end; return its offset."""
    found: list[Any] = []

    def is_taken() -> bool:
        try:
            with RawConnection(node.bootstrap) as connection:
                found.append(produce(connection, "t", 0, batch([value])))
        except (ConnectionLost, OSError):
            return False
        return int(found[-1].error_code) == 0

    wait_until("the record to be taken", is_taken, 60)
    return int(found[-1].base_offset)


def is_refused(node: Node) -> bool:
    try:
        with RawConnection(node.bootstrap) as connection:
            answer = produce(connection, "t", 0, batch([b"late"]))
    except (ConnectionLost, OSError):
        return False
    return int(answer.error_code) == KAFKA_STORAGE_ERROR


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS)
def test_a_source_that_is_frozen_and_woken_touches_nothing_of_its_heir(
    step: str, tmp_path: Path, moto_store: Store
) -> None:
    with fault_proxy(moto_store.endpoint or "") as proxy:
        hold = Hold(proxy, STEPS[step])
        through = moto_store.through(proxy.endpoint)
        source = Node(tmp_path / "source", {**BRISK, **through.node_settings, **SETTINGS}, moto_store.env)
        heir: Node | None = None
        source.start()
        try:
            Admin(source.bootstrap).create("t", 1, **TIERED)
            with busy(source):
                wait_until("a cut", lambda: (cuts := cuts_of(moto_store)) and cuts.exact, 60)
                wait_until("segments", lambda: sum(k.endswith(".seg") for k in tags(moto_store)) > 5, 60)
                hold.is_wanted = True
                wait_until(step, hold.is_held.is_set, 200)
                os.kill(source.pid, signal.SIGSTOP)
            heir = heir_of(tmp_path, moto_store)
            heir.start()
            first = produced(heir, b"of the heir")
            assert first > GAP
            newest = cuts_of(moto_store)
            assert newest is not None
            wait_until(
                "a cut of the heir", lambda: (cuts_of(moto_store) or newest).newest != newest.newest, 60
            )
            heir.stop()
            before = {key: tag for key, tag in tags(moto_store).items() if key not in hold.keys}
            os.kill(source.pid, signal.SIGCONT)
            hold.may_go.set()
            wait_until("the source to refuse producers", lambda: is_refused(source), 60)
            for _ in range(5):
                assert is_refused(source)
            after = tags(moto_store)
            assert {key: after.get(key) for key in before} == before, "an object is gone, or another"
            source.stop()
            assert {key: tags(moto_store).get(key) for key in before} == before
            assert fsck(moto_store)["errors"] == []
            heir.start()
            assert produced(heir, b"more") == first + 1
            assert end_offset(heir.bootstrap, "t", 0) == first + 2
        finally:
            hold.may_go.set()
            if source.running:
                os.kill(source.pid, signal.SIGCONT)
            source.close()
            if heir is not None:
                heir.close()
