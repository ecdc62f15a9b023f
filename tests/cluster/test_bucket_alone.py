"""The bucket of a node suffices by itself: its metadata, and records readable without Firn."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.metadata.snapshot_codec import decode_snapshot
from service.remote.reading.object_reader import open_metadata
from service.remote.stores.obstore_store import open_store
from tests.conftest import NodeFactory
from tests.support.clients import Admin, Confluent, make_rows
from tests.support.fsck import fsck
from tests.support.processes import FIRN, REPOSITORY, wait_until
from tests.support.stores import Store
from tests.support.tiers import settle
from tests.support.world import WORLD

TIERED = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}


def named_topics(store: Store) -> set[str]:
    """Topics of the metadata snapshot that the bucket names."""
    found = open_metadata(open_store(store.url, world=WORLD))
    if found is None:
        return set()
    ref, data = found
    return set(decode_snapshot([data], end_offset=ref.end_offset, epoch=ref.epoch).topics_by_name)


def test_the_bucket_has_the_metadata_and_records_that_the_reference_reader_reads(
    start_node: NodeFactory, disk_store: Store
) -> None:
    node = start_node(disk_store)
    Admin(node.bootstrap).create("events", 1, **TIERED)
    Confluent().produce(node.bootstrap, "events", make_rows(6_000, 1))
    end = settle(node.bootstrap, "events", 0)
    wait_until("a copy of the metadata", lambda: any("metadata/" in key for key in disk_store.objects()))
    node.restart()
    wait_until("the metadata to name the topic", lambda: "events" in named_topics(disk_store))
    (partition,) = fsck(disk_store)["partitions"]
    archived_end = partition["end_offset"]
    assert 0 < archived_end <= end
    rows = Confluent().read(node.bootstrap, "events", 0, 0, archived_end)
    reader = REPOSITORY / "docs" / "reference_reader.py"
    folder = Path(disk_store.url.removeprefix("file://"))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(reader), str(folder), "events", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["offset"] for one in found] == list(range(archived_end))
    for one, row in zip(found, rows, strict=True):
        assert (one["timestamp"], told(one["key"]), told(one["value"])) == (row.timestamp, row.key, row.value)
        assert tuple((name, told(value)) for name, value in one["headers"]) == row.headers


def told(shown: object) -> bytes | None:
    """The bytes that the reader shows as text, or in base64."""
    if isinstance(shown, dict):
        return base64.b64decode(shown["base64"])
    return shown.encode() if isinstance(shown, str) else None


def repair(store: Store, *options: str) -> subprocess.CompletedProcess[str]:
    """`firn repair`, as an operator runs it."""
    command = [str(FIRN), "repair", store.url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.thorough
def test_a_start_with_a_damaged_cluster_json_says_what_to_do_and_goes_on_when_it_is_repaired(
    start_node: NodeFactory, disk_store: Store
) -> None:
    node = start_node(disk_store)
    Admin(node.bootstrap).create("events", 1, **TIERED)
    rows = make_rows(6_000, 1)
    Confluent().produce(node.bootstrap, "events", rows)
    end = settle(node.bootstrap, "events", 0)
    node.stop()
    path = Path(disk_store.url.removeprefix("file://")) / "cluster.json"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    node.start()
    log = node.stderr_path.read_text(errors="replace")
    assert "nothing is copied, expired or swept until that is settled: cluster.json: " in log
    assert "(firn repair)" in log
    assert len(Confluent().read(node.bootstrap, "events", 0, 0, end)) == end, "both tiers are read"
    said = repair(disk_store)
    assert said.returncode == 1
    assert "to be made from the archive: cluster " in said.stdout
    assert "naming metadata/" in said.stdout
    assert path.read_bytes() == bytes(damaged), "a dry run"
    done = repair(disk_store, "--write")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert repair(disk_store).returncode == 0
    Confluent().produce(node.bootstrap, "events", rows)  # the node asks again by itself
    assert settle(node.bootstrap, "events", 0) > end
    assert len(Confluent().read(node.bootstrap, "events", 0, 0, end)) == end
    node.stop()
    fsck(disk_store)
