"""Nodes that do not belong here, and connections that do not belong on that listener: each is told so, or
closed, and the cluster goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.base.world import system_world
from service.cli.main import main
from service.hot.log_dir import encode_uuid, random_id
from tests.support.changes import Changes
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member
from tests.support.wire import RawConnection, connect_all, encode_request, schema

CONTROLLER, BROKER, STRANGER = 1, 4, 6
IMPATIENT = {"initial.broker.registration.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.apart(tmp_path_factory.mktemp("cluster"), [CONTROLLER, 2, 3], [BROKER]) as made:
        yield made.start()
        for member in (BROKER, CONTROLLER, 2, 3):
            made.members[member].leave()


@pytest.fixture
def stranger(cluster: Cluster) -> Iterator[Member]:
    """A broker that is to be refused."""
    made = cluster.broker(STRANGER, IMPATIENT)
    yield made
    if made.is_running:
        made.kill()
    del cluster.members[STRANGER]
    shutil.rmtree(made.data, ignore_errors=True)
    made.log_path.unlink()


def brokers(cluster: Cluster) -> set[int]:
    """Those that are there for clients."""
    module = schema(60, 0)
    request = module.DescribeClusterRequest(include_cluster_authorized_operations=False)
    with RawConnection(cluster.members[BROKER].bootstrap) as connection:
        return {one.broker_id for one in connection.call(request).brokers}


def meta(member: Member) -> dict[str, str]:
    lines = (member.data / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def write_meta(member: Member, **changes: str) -> None:
    """What an earlier node would have left behind in the directory."""
    member.data.mkdir(exist_ok=True)
    text = "".join(f"{key}={value}\n" for key, value in changes.items())
    (member.data / "meta.properties").write_text(text)


def own_meta(member: Member, cluster: Cluster, **changes: str) -> None:
    known = {
        "version": "1",
        "cluster.id": cluster.plan.cluster_id,
        "node.id": str(member.node_id),
        "directory.id": encode_uuid(random_id(system_world())),
    }
    write_meta(member, **{**known, **{key.replace("_", "."): value for key, value in changes.items()}})


def test_a_broker_of_another_cluster_is_not_taken_in(cluster: Cluster, stranger: Member) -> None:
    own_meta(stranger, cluster, cluster_id=encode_uuid(random_id(system_world())))
    assert "no controller has registered this broker within 3 s" in stranger.refused()
    told = cluster.members[cluster.members[BROKER].quorum().leader].said()
    assert f"it does not belong to cluster {cluster.plan.cluster_id}" in told
    assert brokers(cluster) == {BROKER}


def test_a_directory_of_another_node_is_refused(cluster: Cluster, stranger: Member) -> None:
    own_meta(stranger, cluster, node_id="7")
    said = stranger.refused()
    assert str(stranger.data) in said
    assert "7" in said
    assert brokers(cluster) == {BROKER}


def test_a_copied_directory_under_another_id_is_refused_and_so_is_its_id(
    cluster: Cluster, stranger: Member
) -> None:
    shutil.copytree(cluster.members[BROKER].data, stranger.data, ignore=shutil.ignore_patterns(".lock"))
    assert "node" in stranger.refused()
    own_meta(stranger, cluster, directory_id=meta(cluster.members[BROKER])["directory.id"])
    assert "invalid_registration" in stranger.refused().lower()
    told = cluster.members[cluster.members[BROKER].quorum().leader].said()
    assert f"broker {STRANGER}, invalid_registration" in told
    assert brokers(cluster) == {BROKER}


def test_a_second_process_with_a_brokers_id_is_refused_while_the_first_lives(
    cluster: Cluster, stranger: Member
) -> None:
    first = cluster.members[BROKER]
    stranger.settings["node.id"] = str(BROKER)
    stranger.node_id = BROKER
    assert "duplicate_broker_registration" in stranger.refused().lower()
    stranger.node_id = STRANGER
    stranger.settings["node.id"] = str(STRANGER)
    assert brokers(cluster) == {BROKER}
    assert first.is_running
    # and on the first one's directory there is a lock
    shutil.rmtree(stranger.data)
    other = Member(cluster.plan.nodes[-1], first.folder / "again", first.program)
    other.folder.mkdir()
    other.settings["listeners"] = stranger.settings["listeners"]
    assert "lock" in other.refused().lower()
    assert brokers(cluster) == {BROKER}


def test_a_voter_of_several_with_nothing_on_its_disk_is_refused(tmp_path: Path) -> None:
    with Cluster.apart(tmp_path, [1, 2, 3], []) as cluster:
        voters = ",".join(
            f"{node_id}@{one.settings['listeners'].rpartition('/')[2]}"
            for node_id, one in cluster.members.items()
        )
        for one in cluster.members.values():
            shutil.rmtree(one.data)
            del one.settings["controller.quorum.bootstrap.servers"]
            one.settings["controller.quorum.voters"] = voters
            assert f"No `meta.properties` found in {one.data}" in one.refused()
            options = ("--config", str(one.properties), "--cluster-id", cluster.plan.cluster_id)
            assert main(["format", *options]) == 0
        cluster.start()
        # who votes under version 0 of the quorum is a matter of the configuration: that it changes is said
        for one in cluster.members.values():
            one.leave()


def closes(bootstrap: str, request: object) -> bool:
    with RawConnection(bootstrap) as connection:
        connection.send_frame(encode_request(request))
        return connection.is_closed_by_peer(30)


def test_an_api_that_a_listener_does_not_serve_closes_the_connection(cluster: Cluster) -> None:
    heartbeat = schema(63, 1).BrokerHeartbeatRequest(
        broker_id=BROKER,
        broker_epoch=1,
        current_metadata_offset=1,
        want_fence=False,
        want_shut_down=False,
        offline_log_dirs=(),
    )
    vote = schema(52, 0).VoteRequest(cluster_id=None, topics=())
    metadata = schema(3, 1).MetadataRequest(topics=None)
    groups = schema(16, 4).ListGroupsRequest(states_filter=())
    broker, controller = cluster.members[BROKER].bootstrap, cluster.members[CONTROLLER].bootstrap
    for request in (heartbeat, vote):
        assert closes(broker, request), type(request).__name__
    for request in (metadata, groups):
        assert closes(controller, request), type(request).__name__
    assert brokers(cluster) == {BROKER}


@pytest.mark.timeout(180)
def test_a_thousand_that_say_nothing_keep_no_broker_from_being_heard(cluster: Cluster) -> None:
    places = [(BROKER, cluster.members[BROKER].bootstrap)]
    leader = cluster.members[cluster.members[BROKER].quorum().leader]
    with ExitStack() as stack, Changes(places, 10, 1) as changes:
        for one in connect_all(leader.bootstrap, 1000):
            stack.enter_context(one)
        began = time.monotonic()
        # longer than a broker's session
        wait_until("the session's time to be over", lambda: time.monotonic() > began + 12, 60)
        changes.wait_for_next(time.monotonic())
        assert brokers(cluster) == {BROKER}
        assert cluster.members[BROKER].quorum().leader == leader.node_id
        assert "fenced" not in cluster.members[BROKER].said().replace("unfenced", "")
        changes.stop()
        assert changes.refusals == []
        assert max(one.answered_s - one.sent_s for one in changes.answers) < 10
