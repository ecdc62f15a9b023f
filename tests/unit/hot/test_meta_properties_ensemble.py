"""The directories of a node taken together: which are formatted, and whether they agree."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from service.base.disk import SystemDisk
from service.base.errors import ConfigError
from service.hot.directories import LogDirs
from service.hot.log_dir import META, MetaProperties, is_reserved, write_meta
from service.hot.meta_properties_ensemble import MetaPropertiesEnsemble, load_ensemble
from tests.support.world import make_world

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
DISK = SystemDisk()


def formatted(path: Path, number: int, cluster_id: str = CLUSTER_ID, node_id: int = 1) -> Path:
    path.mkdir()
    write_meta(DISK, path, MetaProperties(cluster_id, node_id, UUID(int=number << 70)))
    return path


def refused(
    ensemble: MetaPropertiesEnsemble, cluster_id: str | None = None, node_id: int | None = None
) -> str:
    with pytest.raises(ConfigError) as raised:
        ensemble.verify(cluster_id, node_id)
    return str(raised.value)


def test_directories_are_formatted_or_empty_or_unreadable(tmp_path: Path) -> None:
    a, b = formatted(tmp_path / "a", 1), tmp_path / "b"
    (tmp_path / "c").mkdir()
    broken = formatted(tmp_path / "d", 4)
    (broken / META).write_bytes((broken / META).read_bytes().replace(b"node.id=1", b"node.id=3"))
    found = load_ensemble(DISK, [a, b, tmp_path / "c", broken])
    assert list(found.formatted) == [a]
    assert found.empty == (b, tmp_path / "c")
    assert list(found.failed) == [broken]
    assert found.cluster_id == CLUSTER_ID
    found.verify(None, 1)
    found.verify(CLUSTER_ID, None)
    assert load_ensemble(DISK, [b]).cluster_id is None


def test_directories_of_another_cluster_or_node_are_refused_by_name(tmp_path: Path) -> None:
    found = load_ensemble(DISK, [formatted(tmp_path / "a", 1), formatted(tmp_path / "b", 2, "other")])
    assert refused(found) == (
        f"Invalid cluster.id in: {tmp_path}/b/meta.properties. Expected {CLUSTER_ID}, but read other"
    )
    assert "a/meta.properties. Expected other, but read" in refused(found, "other")
    nodes = load_ensemble(DISK, [formatted(tmp_path / "c", 1), formatted(tmp_path / "d", 2, node_id=2)])
    assert "Stored node id 2 doesn't match previous node id 1" in refused(nodes)
    assert "Stored node id 1 doesn't match previous node id 7" in refused(nodes, node_id=7)


def test_a_copy_of_a_directory_is_refused(tmp_path: Path) -> None:
    a = formatted(tmp_path / "a", 1)
    shutil.copytree(a, tmp_path / "b")
    told = refused(load_ensemble(DISK, [a, tmp_path / "b"]))
    assert told.startswith("Duplicate directory ID ")
    assert told.endswith(f"It was the ID of {a}, but also of {tmp_path}/b: one is a copy of the other")
    dirs = LogDirs([a, tmp_path / "b"], make_world())
    with pytest.raises(ConfigError, match="Duplicate directory ID"):
        dirs.claim(CLUSTER_ID, 1)
    dirs.close()


@pytest.mark.parametrize(
    ("number", "stands_for_something"),
    [(0, True), (99, True), (100, False), (1 << 63, True), (1 << 64, False)],
)
def test_reserved_ids_are_no_directories(tmp_path: Path, number: int, stands_for_something: bool) -> None:
    assert is_reserved(UUID(int=number)) is stands_for_something
    path = tmp_path / "a"
    path.mkdir()
    write_meta(DISK, path, MetaProperties(CLUSTER_ID, 1, UUID(int=number)))
    found = load_ensemble(DISK, [path])
    if stands_for_something:
        assert "Invalid reserved directory ID" in refused(found)
    else:
        found.verify(None, None)
