"""Nothing stays open: files of deleted segments, connections of peers that have gone."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import NodeFactory
from tests.support.clients import Admin, Confluent, make_rows
from tests.support.processes import wait_until
from tests.support.stores import Store
from tests.support.tiers import settle
from tests.support.wire import RawConnection


def on_their_way_out(data: Path) -> list[str]:
    """Directories and files that a node will delete; what goes meanwhile is passed over."""
    names = (name for _, folders, files in os.walk(data) for name in (*folders, *files))
    return [name for name in names if name.endswith((".deleted", "-delete"))]


def test_no_file_of_a_deleted_segment_stays_open(start_node: NodeFactory, disk_store: Store) -> None:
    node = start_node(disk_store, **{"log.segment.delete.delay.ms": "100"})
    admin = Admin(node.bootstrap)
    for topic in ("kept", "deleted"):
        admin.create(
            topic, 2, remote_storage_enable="true", segment_bytes="1048576", local_retention_bytes="1"
        )
    before = len(node.open_files())
    rows = make_rows(8000, 2)
    for topic in ("kept", "deleted"):
        Confluent().produce(node.bootstrap, topic, rows)
        for partition in (0, 1):
            settle(node.bootstrap, topic, partition)
            Confluent().read(node.bootstrap, topic, partition, 0, 4000)
    admin.delete("deleted")
    wait_until("files to go", lambda: not on_their_way_out(node.data))
    wait_until(  # a read that was under way keeps its file until it is answered
        "files of deleted segments to be closed",
        lambda: not [name for name in node.open_files() if "(deleted)" in name],
    )
    # Readers of object storage keep some connections and files; segments that went keep none.
    assert len(node.open_files()) < before + 20
    node.stop()


def test_connections_of_peers_that_went_are_closed(start_node: NodeFactory) -> None:
    node = start_node()
    before = len(node.open_files())
    connections = [RawConnection(node.bootstrap) for _ in range(300)]
    wait_until("the connections", lambda: len(node.open_files()) >= before + 300)
    for connection in connections:
        connection.socket.close()
    wait_until("them to be closed", lambda: len(node.open_files()) <= before + 1)
    node.stop()


def test_idle_connections_are_closed_in_time(start_node: NodeFactory) -> None:
    node = start_node(**{"connections.max.idle.ms": "500"})
    with RawConnection(node.bootstrap) as connection:
        assert connection.is_closed_by_peer(10)
    node.stop()
