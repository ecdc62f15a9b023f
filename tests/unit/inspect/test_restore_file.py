"""FILE: what is written is read, for one cluster and its brokers alone, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import ConfigError
from service.inspect.restore_file import RestoreHeader, check_restore, read_restore, write_restore
from service.metadata.bootstrap import encode_bootstrap
from service.metadata.frames import newest
from service.metadata.records import (
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RestoredTailRecord,
    TopicRecord,
)
from tests.support.world import WORLD

HEADER = RestoreHeader("heir", "source", 7, 1_700_000_000_000, (1, 2, 3))
TOPIC = UUID(int=5)
RECORDS: list[MetadataRecord] = [
    FeatureLevelRecord(name="metadata.version", feature_level=30),
    TopicRecord(name="events", topic_id=TOPIC),
    *(
        PartitionRecord(
            partition_id=number, topic_id=TOPIC, replicas=(1,), isr=(1,), leader=-1, leader_epoch=1_000,
            partition_epoch=0, directories=(None,),
        )
        for number in range(1_200)
    ),
    RestoredTailRecord(
        topic_id=TOPIC, partition_id=0, chain_end=5, end_offset=9, go_on=1_000_009, cut_key="cut/1",
        segment_key="",
    ),
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "restore.checkpoint"
    write_restore(WORLD.disk, path, HEADER, RECORDS, 7)
    return path


def test_a_file_is_read_as_it_was_written(file: Path) -> None:
    found = read_restore(WORLD.disk, file)
    assert found.header == HEADER
    assert [frame.record for frame in found.frames] == RECORDS


@pytest.mark.parametrize("at", [5, 40, 300, -1])
def test_a_damaged_file_is_refused(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)
    with pytest.raises(ConfigError, match="make it again"):
        read_restore(WORLD.disk, file)


@pytest.mark.parametrize("left", [0, 10, 5_000])
def test_a_file_that_is_cut_short_is_refused(file: Path, left: int) -> None:
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(ConfigError, match="make it again"):
        read_restore(WORLD.disk, file)


def test_another_checkpoint_is_none(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(encode_bootstrap(map(newest, RECORDS), 7))
    with pytest.raises(ConfigError, match="is not a file of"):
        read_restore(WORLD.disk, path)
    with pytest.raises(ConfigError, match="no such file"):
        read_restore(WORLD.disk, tmp_path / "none")


def test_a_file_is_for_its_cluster_and_its_brokers(file: Path) -> None:
    found = read_restore(WORLD.disk, file)
    check_restore(found, cluster_id="heir", node_id=3, is_broker=True)
    check_restore(found, cluster_id="heir", node_id=100, is_broker=False)
    with pytest.raises(ConfigError, match="for cluster heir, not other"):
        check_restore(found, cluster_id="other", node_id=3, is_broker=True)
    with pytest.raises(ConfigError, match="for brokers 1, 2, 3, and this node is 4"):
        check_restore(found, cluster_id="heir", node_id=4, is_broker=True)
