"""The keeper of a prefix: succession after a failure, and other prefixes."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID

import pytest

from service.base.threads import SystemThreads
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import open_cluster_file
from service.remote.stores.memory_store import MemoryStore
from service.tiering.keeper_election import KeeperTimeout
from service.tiering.prefix_fence import claim_prefix
from tests.unit.tiering.test_shared_prefix import TOPIC, Cluster, archive, named
from tests.unit.tiering.world import CLUSTER, Fault, no_faults

STRANGER = Stamp(5, Writer(1, UUID(int=99)))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, MemoryStore(SystemThreads()))


def fails(operation: str, key: str) -> Fault:
    return Fault.FAIL


def no_writes_of_cluster_json(operation: str, key: str) -> Fault:
    return Fault.FAIL if operation.startswith("put") and key == "cluster.json" else Fault.PASS


def restart(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        cluster[number].reboot()
        cluster.quorum.unfence(number)
        cluster.quorum.elect(TOPIC, number - 1, number)


@pytest.mark.parametrize("fault", [fails, no_writes_of_cluster_json])
def test_a_keeper_that_cannot_keep_hands_the_office_on_within_a_minute_and_takes_it_back(
    cluster: Cluster, fault: object
) -> None:
    cluster.fill(1)
    cluster.run()
    before = cluster.ends()
    cluster[1].store.decide = fault  # type: ignore[assignment]
    restart(cluster, 2, 3)
    cluster.fill(2, 1, 2)
    cluster.run(12, pause_ms=5_000)
    assert all(now > then for now, then in zip(cluster.ends()[1:], before[1:], strict=True))
    assert cluster[2].is_keeper
    assert cluster[2].incarnations[-1] == named(cluster)[0]
    cluster[1].store.decide = no_faults
    cluster.fill(2)
    cluster.run(4, pause_ms=12_000)
    assert [one.is_keeper for one in cluster.members] == [True, False, False]
    assert all(one.manager.metrics.displaced is None for one in cluster.members)
    assert cluster.ends()[0] > before[0]
    for member in cluster.members:
        member.check()


def test_a_restarted_broker_reports_which_keeper_it_waits_for(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.fill(1)
    cluster.run()
    cluster[1].store.decide = fails
    restart(cluster, 3)
    cluster.run(4, 1, 2, pause_ms=5_000)
    metrics = cluster[3].manager.metrics
    assert metrics.waits_since_ms is not None
    assert metrics.waits is not None
    assert "waits to be named by broker 1" in metrics.waits
    said = [one for one in caplog.messages if "waits to be named by broker 1" in one]
    assert len(said) == 1, "once, not with every look"
    assert "docs/operations.md" in said[0]
    cluster[1].store.decide = no_faults
    cluster.run()
    assert metrics.waits is None
    assert metrics.waits_since_ms is None


def test_a_keeper_of_a_version_that_does_not_renew_keeps_the_office(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run()
    stored = open_cluster_file(cluster.bucket)
    assert stored is not None
    cluster.bucket.put("cluster.json", encode_cluster(stored._replace(renewals=0)))
    cluster.run(6, 1)
    assert named(cluster)[0] == cluster[1].incarnations[-1]
    assert not cluster[2].is_keeper


@pytest.mark.parametrize("odd", [1, 2])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_broker_with_another_prefix_keeps_nothing_writes_nothing_and_says_so(
    tmp_path: Path, odd: int, is_new: bool
) -> None:
    """`is_new`: nothing was archived yet when it came."""
    bucket, other = MemoryStore(SystemThreads()), MemoryStore(SystemThreads())
    cluster = Cluster(tmp_path, bucket)
    if not is_new:
        cluster.fill(1)
        cluster.run()
    before = cluster.ends()
    claim_prefix(other, CLUSTER)
    cluster[odd].store.inner = other
    restart(cluster, odd)
    cluster.fill(2)
    cluster.run(16, pause_ms=5_000)
    others = [number for number in (1, 2, 3) if number != odd]
    assert all(cluster.ends()[number - 1] > before[number - 1] for number in others)
    assert cluster.ends()[odd - 1] == before[odd - 1]
    assert not list(other.list("data"))
    assert not cluster[odd].is_keeper
    assert not cluster[odd].manager.may_write
    assert cluster[min(others)].is_keeper
    waits = cluster[odd].manager.metrics.waits
    assert waits is not None
    assert "firn.remote.url" in waits


def test_tiering_pauses_during_a_foreign_cluster_json_and_resumes(
    cluster: Cluster,
) -> None:
    cluster.fill(1)
    cluster.run()
    before, owned = archive(cluster), cluster.bucket.get("cluster.json", max_size=1 << 16)
    cluster.bucket.put("cluster.json", encode_cluster(ClusterFile("another", STRANGER)))
    restart(cluster, 3)
    cluster.fill(2)
    cluster.run(8, pause_ms=20_000)
    assert archive(cluster) == before
    said = [one.manager.metrics for one in cluster.members]
    assert ["another" in (one.displaced or one.waits or "") for one in said] == [True] * 3
    assert [one.displaced is None for one in said] == [False, False, True]
    cluster.bucket.put("cluster.json", owned)
    cluster.run(4, pause_ms=60_000)
    assert all(now > 10 for now in cluster.ends())
    assert [one.manager.metrics.displaced for one in cluster.members] == [None] * 3


@pytest.mark.parametrize("document", [b"{}", b"", b'{"format_version": 99}', b"a" * 700])
def test_a_cluster_json_that_says_nothing_is_told_while_nothing_is_written(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, document: bytes
) -> None:
    cluster.fill(1)
    cluster.run()
    before, owned = archive(cluster), cluster.bucket.get("cluster.json", max_size=1 << 16)
    cluster.bucket.put("cluster.json", document)
    cluster.fill(2)
    cluster.run(4, pause_ms=20_000)
    assert archive(cluster) == before
    for member in cluster.members:
        metrics = member.manager.metrics
        assert "cluster.json" in (metrics.waits or ""), "as /readyz says it"
        assert metrics.waits_since_ms is not None
        assert not member.manager.may_delete_local, "nobody knows whose bytes are there"
    assert "this broker copies, expires and sweeps nothing" in caplog.text
    cluster.bucket.put("cluster.json", owned)
    cluster.run(4, pause_ms=20_000)
    assert archive(cluster) != before
    for member in cluster.members:
        assert member.manager.metrics.waits is None
        assert member.manager.metrics.waits_since_ms is None
        assert member.manager.may_delete_local


def test_a_regular_takeover_by_the_next_keeper_logs_no_failure(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker 1 is unfenced while broker 2 takes the prefix over, as at the first start of a cluster."""
    cluster.quorum.fence(1)
    written: list[str] = []

    def unfence(operation: str, key: str) -> Fault:
        if operation.startswith("put") and key == "cluster.json":
            written.append(operation)
            if len(written) == 2:  # the first one says that it is there
                cluster.quorum.unfence(1)
                cluster[2].catch_up()
        return Fault.PASS

    cluster[2].store.decide = unfence
    cluster.fill(1)
    cluster.run(8, 1, pause_ms=5_000)
    assert cluster.quorum.unfenced() == [1, 2, 3]
    assert cluster[2].is_keeper
    assert "is the prefix's keeper now" not in caplog.text


def test_an_election_that_fails_is_a_warning_once_it_has_failed_for_ten_seconds(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Nodes that start together find this or that not ready yet, and are well."""
    caplog.set_level(logging.INFO)

    def levels() -> list[int]:
        return [one.levelno for one in caplog.records if "election of the prefix's keeper" in one.message]

    cluster[1].store.decide = fails
    cluster.run(3, 2, 3, pause_ms=1_000)
    cluster[1].store.decide = no_faults
    cluster.run(4, pause_ms=10_000)
    assert levels() == [logging.INFO]
    cluster[1].store.decide = fails
    cluster.run(16, 2, 3, pause_ms=10_000)
    assert levels()[:3] == [logging.INFO, logging.INFO, logging.WARNING]
    assert 2 < levels().count(logging.WARNING) < 7, "ever more rarely"


def test_members_that_are_restarted_do_not_cost_the_keeper_of_an_empty_archive_its_office(
    cluster: Cluster,
) -> None:
    cluster.run()
    restart(cluster, 2, 3)
    cluster.run(1)
    assert cluster[1].is_keeper


def test_a_pause_of_the_reader_is_no_silence_of_the_keeper() -> None:
    timeout = KeeperTimeout()
    timeout.observe((UUID(int=1), 4), 0)
    timeout.observe((UUID(int=1), 9), 3_600_000)
    assert timeout.unchanged_ms(3_600_000) == 0
