"""A node that is lost comes back by the commands alone: cut, plan, apply, format, start, status."""

from __future__ import annotations

import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from service.base.disk import SystemDisk
from service.inspect.restore_file import read_restore
from service.remote.reading.tails import open_cuts, open_named_cut
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import open_store
from tests.node.conftest import NodeThread
from tests.node.heirs import Nodes
from tests.node.test_restored_nodes import all_is_served, committed_offset, filled, produced, read
from tests.support.processes import FIRN, wait_until
from tests.support.world import WORLD


def firn(*words: str) -> str:
    done = subprocess.run([str(FIRN), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def ends_of(nodes: Nodes) -> dict[UUID, list[int]]:
    broker = nodes.nodes[1].node.parts.broker
    assert broker is not None
    return {
        topic.id: [broker.replicas.find(topic.id, one).high_watermark for one in topic.partitions]
        for topic in nodes.image.topics_by_id.values()
    }


def ends_of_cut(url: str) -> dict[UUID, list[int]]:
    """Return the ends in the newest complete cut, none without one."""
    store = open_store(url, world=WORLD)
    try:
        ref = open_cuts(store).exact
    except ObjectNotFound:
        return {}
    if ref is None:
        return {}
    return {
        topic_id: [row.end for row in rows] for topic_id, rows in open_named_cut(store, ref).topics.items()
    }


@pytest.mark.thorough
def test_a_lost_node_comes_back_by_the_commands(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    source = Nodes(tmp_path / "source", 1, tmp_path / "bucket", None, **{"firn.cut.interval.ms": "1000"})
    heir: Nodes | None = None
    source.start()
    try:
        seen, _ = filled(source)
        wait_until("a cut of all that", lambda: ends_of_cut(url) == ends_of(source), 60)
        source.stop()
        firn("restore", "plan", "--from", url)
        file = tmp_path / "file"
        apply = ("restore", "apply", "--from", url, "--take-over", "--force", "--brokers", "1")
        firn(*apply, "-o", str(file))
        settings = {"node.id": "1", "log.dirs": f"{tmp_path}/heir", "firn.remote.url": url}
        lines = [f"{key}={value}" for key, value in settings.items()]
        config = tmp_path / "heir.properties"
        config.write_text("\n".join([*lines, "listeners=PLAINTEXT://127.0.0.1:0\n"]))
        cluster_id = read_restore(SystemDisk(), file).header.cluster_id
        firn("format", "-c", str(config), "-t", cluster_id, "--restore", str(file))
        heir = Nodes.__new__(Nodes)
        heir.nodes = {1: NodeThread(tmp_path / "heir", None, None, **settings)}
        heir.start()
        all_is_served(heir)
        assert read(heir, 42) == seen
        assert committed_offset(heir) == 7
        assert produced(heir, b"new") == 1_000_043
        firn("restore", "status", "--bootstrap-server", heir.bootstrap)
    finally:
        source.stop()
        if heir is not None:
            heir.stop()
