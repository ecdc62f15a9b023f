"""`firn restore` and `firn format --restore` by their command lines, over an archive in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli.main import main
from service.metadata.bootstrap import first_records
from service.metadata.features import cluster_features, supported_features
from service.metadata.records import FeatureLevelRecord, PartitionRecord, RestoredTailRecord, TopicRecord
from service.remote.reading.object_reader import open_cluster_file
from service.remote.stores.obstore_store import open_store
from tests.support.world import WORLD
from tests.unit.inspect.cuts import TIERED, Cutting, internal_log, stored
from tests.unit.tiering.world import CLUSTER, World

HEIR = "AAAAAAAAAAAAAAAAAAAAEQ"


@pytest.fixture
def world(tmp_path: Path) -> World:
    store = open_store((tmp_path / "bucket").as_uri(), world=WORLD)
    world = World(tmp_path / "disk", store, partitions=2)
    world.topic_configs = {"events": {**TIERED, "min.insync.replicas": "2"}}
    world.fill(2)
    world.run()
    world.run()
    Cutting(world, internal=internal_log()).cut({one: one.log.log_end_offset for one in world.replicas})
    return world


def url(tmp_path: Path, name: str = "bucket") -> str:
    return (tmp_path / name).as_uri()


def test_the_plan_is_a_table_or_a_document(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(world.bucket)
    assert main(["restore", "plan", "--from", url(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"cluster {CLUSTER}: cut 1 of " in text
    assert "exact: one moment of all partitions" in text
    assert main(["restore", "plan", "--from", url(tmp_path), "--json", "--topics", "ev.*"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cut"], [topic["name"] for topic in found["topics"]]) == (1, ["events"])
    assert stored(world.bucket) == before


def apply(tmp_path: Path, *more: str) -> int:
    return main(
        [
            "restore", "apply", "--from", url(tmp_path), "--brokers", "1,2,3",
            "-o", str(tmp_path / "restore.checkpoint"), *more,
        ]
    )  # fmt: skip


def test_a_clone_and_its_first_node(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--to", url(tmp_path, "other"), "--fit", "--cluster-id", HEIR, "--json")
    assert apply(tmp_path, *more) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster_id"], found["brokers"]) == (HEIR, [1, 2, 3])
    assert open_cluster_file(world.bucket).cluster_id == CLUSTER
    settings = ["--set", "node.id=2", "--set", f"log.dirs={tmp_path / 'data'}"]
    file = str(tmp_path / "restore.checkpoint")
    assert main(["format", *settings, "-t", HEIR, "--restore", file]) == 0
    records = first_records(WORLD.disk, tmp_path / "data", supported_features())
    assert records is not None
    assert [one.name for one in records if isinstance(one, TopicRecord)] == ["__consumer_offsets", "events"]
    assert len([one for one in records if isinstance(one, PartitionRecord)]) == 3
    assert len([one for one in records if isinstance(one, RestoredTailRecord)]) == 3
    levels = {one.name for one in records if isinstance(one, FeatureLevelRecord)}
    assert levels <= {one.name for one in cluster_features()}
    assert main(["format", *settings, "-t", HEIR, "--restore", file, "-g"]) == 1
    assert "formatted already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--take-over", "--topics", "events"), "--topics goes with --to alone"),
        (("--to", "file:///nowhere/else", "--force"), "--force goes with --take-over"),
        (("--take-over", "--replication-factor", "4"), "there are 3 brokers"),
        (("--take-over", "--cluster-id", "?"), "--cluster-id ?"),
        (("--take-over", "--force"), "lowered by --fit"),
    ],
)
def test_impossible_orders_are_refused_and_write_nothing(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    words: str,
) -> None:
    before = stored(world.bucket)
    assert apply(tmp_path, *more) == 1
    assert words in capsys.readouterr().err
    assert stored(world.bucket) == before
    assert not (tmp_path / "restore.checkpoint").exists()


def test_a_prefix_within_the_other_is_refused(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert apply(tmp_path, "--to", url(tmp_path, "bucket/inner")) == 1
    assert "one must not be in the other" in capsys.readouterr().err


def test_a_broker_needs_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "--set", "node.id=2", "--set", "process.roles=broker", "--set", f"log.dirs={tmp_path}",
        "--set", "controller.quorum.bootstrap.servers=127.0.0.1:9093",
        "--set", "controller.listener.names=CONTROLLER",
        "--set", "listeners=PLAINTEXT://127.0.0.1:0",
    ]  # fmt: skip
    assert main(["format", *settings, "-t", HEIR, "--restore", "none"]) == 1
    assert "a pure broker needs no file" in capsys.readouterr().err
