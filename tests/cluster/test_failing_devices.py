"""A device that fails under a node, or before its start: its directory is offline, the others go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin, Confluent
from tests.support.failing_fsync import FailingFsync
from tests.support.processes import Node, wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.wire import RawConnection, end_offset, produce

KAFKA_STORAGE_ERROR = 56
CLEAN, DOUBTFUL = ".kafka_cleanshutdown", ".fsync-failed"
TOPICS = ("one", "two", "three", "four")
FLUSHED: dict[str, Any] = {"flush_messages": "1"}


class Produced:
    """What a node said of one topic's only partition: acknowledged values by offset, and refused ones."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self._number = 0

    def send(self, node: Node, count: int = 1) -> list[int]:
        """Error codes of `count` batches of one record."""
        codes = []
        with RawConnection(node.bootstrap) as connection:
            for _ in range(count):
                value = b"%s-%08d" % (self.topic.encode(), self._number)
                self._number += 1
                answer = produce(connection, self.topic, 0, batch([value]))
                codes.append(int(answer.error_code))
                if codes[-1] == 0:
                    self.values[int(answer.base_offset)] = value
                else:
                    self.refused.add(value)
        return codes

    def check(self, node: Node) -> None:
        """All that was acknowledged is there, once, at its offset. Of a refused batch nobody knows."""
        end = end_offset(node.bootstrap, self.topic, 0)
        found = {
            at: row.value for at, row in enumerate(Confluent().read(node.bootstrap, self.topic, 0, 0, end))
        }
        assert {at: found.get(at) for at in self.values} == self.values
        assert {value for at, value in found.items() if at not in self.values} <= self.refused


def two_directories(tmp_path: Path) -> tuple[Path, Path]:
    """The first holds the metadata log. Neither's name is part of the other's."""
    return tmp_path / "first-dir", tmp_path / "second-dir"


def by_directory(directory: Path, topics: Mapping[str, Produced]) -> list[Produced]:
    return [one for name, one in topics.items() if (directory / f"{name}-0").is_dir()]


def fill(node: Node) -> dict[str, Produced]:
    topics = {name: Produced(name) for name in TOPICS}
    for name, one in topics.items():
        Admin(node.bootstrap).create(name, **FLUSHED)
        assert one.send(node, 20) == [0] * 20
    return topics


def says(node: Node, *words: str) -> bool:
    lines = node.stderr_path.read_text(errors="replace").splitlines()
    return any(all(word in line for word in words) for line in lines)


@pytest.mark.parametrize("once", [False, True], ids=["from-then-on", "once"])
def test_a_directory_whose_fsync_fails_is_offline_and_the_other_is_served(
    once: bool, start_node: NodeFactory, tmp_path: Path
) -> None:
    first, second = two_directories(tmp_path)
    fsync = FailingFsync(tmp_path, f"/{second.name}/", once=once)
    node = start_node(env=fsync.env, **{"log.dirs": f"{first},{second}"})
    topics = fill(node)
    struck, spared = by_directory(second, topics), by_directory(first, topics)
    assert len(struck) == len(spared) == 2
    fsync.on()
    assert struck[0].send(node) == [KAFKA_STORAGE_ERROR], "what was not flushed is not acknowledged"
    for one in struck:
        assert set(one.send(node, 3)) == {KAFKA_STORAGE_ERROR}, "a later fsync that succeeds proves nothing"
    for one in spared:
        assert set(one.send(node, 20)) == {0}
        one.check(node)
    assert says(node, "log directory", str(second), "is offline with all its logs")
    assert fsync.is_on != once
    node.stop()
    assert (first / CLEAN).exists()
    assert not (second / CLEAN).exists(), "nobody knows what is on the device"
    assert (second / DOUBTFUL).exists()
    fsync.off()
    node.start()
    for one in topics.values():
        one.check(node)
        assert set(one.send(node, 5)) == {0}
        one.check(node)
    wait_until("what was in doubt to be written again", lambda: not (second / DOUBTFUL).exists())
    node.restart()
    for one in topics.values():
        one.check(node)


def test_a_directory_that_failed_stays_offline_while_the_device_fails(
    start_node: NodeFactory, tmp_path: Path
) -> None:
    first, second = two_directories(tmp_path)
    fsync = FailingFsync(tmp_path, f"/{second.name}/")
    node = start_node(env=fsync.env, **{"log.dirs": f"{first},{second}"})
    topics = fill(node)
    fsync.on()
    struck, spared = by_directory(second, topics), by_directory(first, topics)
    assert struck[0].send(node) == [KAFKA_STORAGE_ERROR]
    node.kill()
    node.start()
    for one in spared:
        assert set(one.send(node, 5)) == {0}
        one.check(node)
    for one in struck:
        assert set(one.send(node)) == {KAFKA_STORAGE_ERROR}
    node.stop()
    fsync.off()
    node.start()
    for one in topics.values():
        one.check(node)
        assert set(one.send(node)) == {0}
    node.stop()


@pytest.mark.parametrize("once", [False, True], ids=["from-then-on", "once"])
def test_a_metadata_log_whose_fsync_fails_ends_the_node(
    once: bool, start_node: NodeFactory, tmp_path: Path
) -> None:
    fsync = FailingFsync(tmp_path, "/__cluster_metadata-0/", once=once)
    node = start_node(env=fsync.env)
    topics = fill(node)
    fsync.on()
    with pytest.raises(KafkaException):
        Admin(node.bootstrap).create("lost")
    wait_until("the node to end", lambda: not node.running)
    assert node.process is not None
    assert node.process.returncode == 1
    assert not (node.data / CLEAN).exists()
    assert says(node, "__cluster_metadata-0")
    fsync.off()
    node.start()
    assert set(TOPICS) <= Admin(node.bootstrap).topics().keys()
    for one in topics.values():
        one.check(node)
        assert set(one.send(node)) == {0}
    Admin(node.bootstrap).create("found")
    node.stop()


def test_a_metadata_log_that_fails_ends_a_node_among_others_at_once(tmp_path: Path) -> None:
    """It does not ask for its leaderships to be moved: it would not hear that they are, nor who decides that.

    With one of three voters dead and this one's log failed nobody could move them, and no one refuses either.
    """
    with Cluster(tmp_path) as cluster:
        fsyncs = {}
        for node_id, member in cluster.members.items():
            (tmp_path / f"device-{node_id}").mkdir()
            fsyncs[node_id] = FailingFsync(tmp_path / f"device-{node_id}", "/__cluster_metadata-0/")
            member.environ = fsyncs[node_id].env
        cluster.start()
        Admin(cluster.bootstrap).replicate("kept", 3, 3, min_insync_replicas="2")
        wait_in_sync(cluster, "kept")
        leader = cluster.members[1].quorum().leader
        dies, fails = (node_id for node_id in cluster.members if node_id != leader)
        member = cluster.members[fails]
        fsyncs[fails].on()
        cluster.members[dies].kill()  # that it is fenced is written
        wait_until(f"node {fails} to end", lambda: not member.is_running, 60)
        assert member.process is not None
        assert member.process.returncode == 1, member.log()
        assert "__cluster_metadata-0" in member.said()
        fsyncs[fails].off()
        cluster.start([dies, fails])
        wait_in_sync(cluster, "kept")
        cluster.stop()


def test_a_start_goes_on_without_a_directory_that_cannot_be_used(
    start_node: NodeFactory, tmp_path: Path
) -> None:
    """A file in its place stands for a disk that is not mounted, or not to be read: tests may run as root."""
    first, second = two_directories(tmp_path)
    node = start_node(**{"log.dirs": f"{first},{second}"})
    topics = fill(node)
    gone, left = by_directory(second, topics), by_directory(first, topics)
    assert len(gone) == len(left) == 2
    node.stop()
    second.rename(tmp_path / "elsewhere")
    second.write_text("not a directory")
    for _ in range(2):
        node.start()
        assert says(node, "log directory", str(second), "cannot be used")
        for one in left:
            one.check(node)
            assert set(one.send(node, 3)) == {0}
        for one in gone:
            assert set(one.send(node)) == {KAFKA_STORAGE_ERROR}
            assert not list(first.glob(f"{one.topic}-0*")), "no empty log in its place"
        node.stop()
    node.start()
    topics["new"] = Produced("new")
    Admin(node.bootstrap).create("new", **FLUSHED)
    assert set(topics["new"].send(node, 5)) == {0}
    Admin(node.bootstrap).delete(gone[1].topic)
    del topics[gone[1].topic]
    node.kill()
    second.unlink()
    (tmp_path / "elsewhere").rename(second)
    node.start()
    for one in topics.values():
        one.check(node)
        assert set(one.send(node)) == {0}
    assert list(second.glob(f"{gone[1].topic}-0*-stray")), "set aside, not served"
    node.stop()


def test_a_start_without_the_directory_of_the_metadata_is_refused(
    start_node: NodeFactory, tmp_path: Path
) -> None:
    first, second = two_directories(tmp_path)
    node = start_node(**{"log.dirs": f"{first},{second}"})
    topics = fill(node)
    node.stop()
    first.rename(tmp_path / "elsewhere")
    first.write_text("not a directory")
    with pytest.raises(AssertionError, match=first.name):
        node.start()
    first.unlink()
    (tmp_path / "elsewhere").rename(first)
    node.start()
    for one in topics.values():
        one.check(node)
    node.stop()
