"""`firn cluster` where it changes a cluster, `firn offsets` and `firn log-dirs`.

At three nodes in this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.cli.dev_nodes import agree_on_ports, format_nodes, plan_nodes
from service.cli.kafka_files import reassignment_json
from service.client import cluster_changes
from service.client.admin import Cluster
from tests.node.conftest import NodeThread, Talk
from tests.support.firn_commands import Firn
from tests.support.processes import wait_until

QUICK = {"auto.leader.rebalance.enable": "false", "controlled.shutdown.enable": "false"}
MIDNIGHT = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, NodeThread]]:
    """Three nodes, each broker and controller."""
    folder, world = tmp_path_factory.mktemp("nodes"), system_world()
    plan = plan_nodes(3, 3, agree_on_ports(0, 3, 3), folder, world, QUICK)
    format_nodes(plan, world)
    found = {
        one.node_id: NodeThread(Path(one.settings["log.dirs"]), None, None, **one.settings)
        for one in plan.nodes
    }
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(NodeThread.start, found.values()))
    yield found
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(NodeThread.stop, found.values()))


@pytest.fixture
def firn(nodes: dict[int, NodeThread], capsys: pytest.CaptureFixture[str]) -> Firn:
    return Firn(",".join(f"127.0.0.1:{node.port}" for node in nodes.values()), capsys)


def described(firn: Firn, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(firn("topic", "describe", topic, "--json"))["partitions"]
    return found


def create(firn: Firn, topic: str, replicas: int = 1) -> None:
    firn("topic", "create", topic, "--partitions", "2", "--replication-factor", str(replicas))
    wait_until("leaders", lambda: all(one["leader"] > 0 for one in described(firn, topic)))


def setting(firn: Firn, *words: str) -> list[str]:
    return [one["value"] for one in json.loads(firn("config", "get", *words, "--json"))]


def test_a_topic_moves_and_its_throttle_goes_with_the_end(
    firn: Firn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(firn, "moved")
    before = {one["partition"]: one["replicas"] for one in described(firn, "moved")}
    (one,) = [one for one in (1, 2, 3) if [one] not in before.values()] or [1]
    back = tmp_path / "before.json"
    to = ("--topic", "moved", "--to", str(one))
    dry = firn("cluster", "reassign", "execute", *to, "--dry-run")
    assert dry.splitlines()[-1] == "nothing was changed: without --dry-run it is"
    told = json.loads(
        firn(
            "cluster", "reassign", "execute", *to, "--throttle", "1000000", "--save-current", str(back),
            "--json"
        )
    )  # fmt: skip
    moves = {row["partition"]: (row["from"], row["to"]) for row in told["moves"]}
    assert moves == {number: (old, [one]) for number, old in before.items() if old != [one]}
    assert setting(firn, "--broker", str(one), "follower.replication.throttled.rate") == ["1000000"]
    assert f"0:{one}" in setting(firn, "--topic", "moved", "follower.replication.throttled.replicas")[0]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(reassignment_json({("moved", 0): [one], ("moved", 1): [one]})))
    assert "done" in firn("cluster", "reassign", "verify", str(plan), "--wait", "30")
    assert [row["replicas"] for row in described(firn, "moved")] == [[one], [one]]
    assert firn("cluster", "reassign", "generate", *to).strip() == plan.read_text()
    said = firn.refused("config", "get", "--broker", str(one), "follower.replication.throttled.rate")
    assert "follower.replication.throttled.rate is not set" in said
    assert "throttled" not in firn("topic", "describe", "moved")

    monkeypatch.setattr("service.cli.cluster_reassign._SETTLE_S", 0)  # it is not there, and will not be
    assert "other replicas" in firn("cluster", "reassign", "verify", str(back), code=1)
    monkeypatch.undo()
    firn("cluster", "reassign", "execute", str(back))
    firn("cluster", "reassign", "verify", str(back), "--wait", "30")
    firn("cluster", "reassign", "verify", "--topic", "moved")
    assert {row["partition"]: row["replicas"] for row in described(firn, "moved")} == before
    assert firn("cluster", "reassign", "execute", str(back)) == "nothing is to move: all replicas are there\n"
    assert firn("cluster", "reassign", "cancel", "--all") == "none of them is under way\n"
    assert firn("cluster", "reassign", "list") == ""


def test_plans_have_kafkas_form_and_refuse_what_cannot_be(firn: Firn, tmp_path: Path) -> None:
    create(firn, "planned")
    plan = json.loads(
        firn("cluster", "reassign", "generate", "--topic", "planned:1", "--to", "1,2,3",
             "--replication-factor", "3")
    )  # fmt: skip
    ((row,), version) = plan["partitions"], plan["version"]
    assert (version, row["topic"], row["partition"], sorted(row["replicas"])) == (1, "planned", 1, [1, 2, 3])
    assert row["log_dirs"] == ["any", "any", "any"]
    topics = tmp_path / "topics.json"
    topics.write_text('{"topics": [{"topic": "planned"}], "version": 1}')
    both = json.loads(
        firn(
            "cluster",
            "reassign",
            "generate",
            "--topics-to-move-json-file",
            str(topics),
            "--to",
            "1",
            "--json",
        )
    )
    assert [one["replicas"] for one in both["proposed"]["partitions"]] == [[1], [1]]
    assert len(both["current"]["partitions"]) == 2
    to = ("--topic", "planned", "--to")
    for words, reason in (
        ((*to, "1,9"), "there is no broker 9; there are 1, 2, 3"),
        ((*to, "1", "--replication-factor", "2"), "for which 1 brokers are too few"),
        (("--topic", "planned"), "what is to move where?"),
        (("--topic", "planned:7", "--to", "1"), "there is no planned-7"),
    ):
        assert reason in firn.refused("cluster", "reassign", "execute", *words), words
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({**plan, "partitions": [{**row, "log_dirs": ["/d", "any", "any"]}]}))
    assert "Firn's brokers choose them" in firn.refused("cluster", "reassign", "execute", str(wrong))
    wrong.write_text("{")
    assert "is not JSON" in firn.refused("cluster", "reassign", "execute", str(wrong))


def test_the_preferred_leader_leads_again(firn: Firn, tmp_path: Path) -> None:
    create(firn, "led", replicas=3)
    (first, *others) = described(firn, "led")[0]["replicas"]
    order = [*others, first]
    wait_until("all in sync", lambda: len(described(firn, "led")[0]["isr"]) == 3)
    plan = {
        "version": 1,
        "partitions": [{"topic": "led", "partition": 0, "replicas": order}],
    }
    path = tmp_path / "order.json"
    path.write_text(json.dumps(plan))
    firn("cluster", "reassign", "execute", str(path))
    wait_until("the order", lambda: described(firn, "led")[0]["replicas"] == order)
    assert described(firn, "led")[0]["leader"] == first
    assert firn("cluster", "elect", "preferred", "--topic", "led:0").splitlines()[1].split() == [
        "led", "0", "elected",
    ]  # fmt: skip
    wait_until("it leads", lambda: described(firn, "led")[0]["leader"] == order[0])
    (row,) = json.loads(firn("cluster", "elect", "preferred", "--topic", "led:0", "--json"))
    assert row == {"topic": "led", "partition": 0, "state": "has that leader"}
    assert firn("cluster", "elect", "preferred", "--all") == "no partition needs another leader\n"
    assert "has that leader" in firn("cluster", "elect", "unclean", "--topic", "led:0")


def test_brokers_that_live_or_are_not_there_are_not_unregistered(firn: Firn) -> None:
    assert "broker 2 is alive: stop it first" in firn.refused("cluster", "unregister", "2")
    said = firn.refused("cluster", "unregister", "9")
    assert said == (
        "firn cluster: broker 9: no broker of this id is registered (BROKER_ID_NOT_REGISTERED);"
        " 'firn cluster describe' has the ids\n"
    )


def test_levels_of_features_are_shown_checked_and_changed(firn: Firn) -> None:
    rows = {one["name"]: one for one in json.loads(firn("cluster", "features", "describe", "--json"))}
    assert rows["metadata.version"]["level"] == 30
    assert rows["group.version"] == {
        "name": "group.version", "min_supported": 0, "max_supported": 1, "level": 1,
    }  # fmt: skip
    said = firn("cluster", "features", "downgrade", "group.version=0", "--dry-run")
    assert said == "group.version could be at 0\n"
    assert firn("cluster", "features", "downgrade", "group.version=0") == "group.version is at 0\n"
    firn("cluster", "features", "upgrade", "group.version=1")
    said = firn.refused("cluster", "features", "upgrade", "group.version=7", "--dry-run")
    assert "firn cluster features describe" in said


def test_the_quorum_is_described_and_its_voters_are_looked_up(firn: Firn) -> None:
    told = json.loads(firn("cluster", "quorum", "describe", "--json"))
    assert {row["node_id"] for row in told["replicas"]} == {1, 2, 3}
    assert [row["role"] for row in told["replicas"]].count("leader") == 1
    (voter,) = [row for row in told["replicas"] if row["node_id"] == 2]
    assert len(voter["directory_id"]) == 22
    assert voter["endpoints"][0].startswith("CONTROLLER://127.0.0.1:")
    text = firn("cluster", "quorum", "describe")
    assert f"leader: {told['leader']}, epoch {told['epoch']}" in text
    said = firn("cluster", "quorum", "remove-voter", "2", "--dry-run")
    assert said == f"controller 2 with directory {voter['directory_id']} could be taken out\n"
    assert "voter 9: there is none" in firn.refused("cluster", "quorum", "remove-voter", "9")
    assert "who is to vote?" in firn.refused("cluster", "quorum", "add-voter", "4")
    out = firn.refused("cluster", "quorum", "add-voter", "4", "--endpoint", "CONTROLLER://127.0.0.1:1")
    assert "observer 4: there is none" in out


def test_a_voter_is_taken_out_and_votes_again(
    firn: Firn, nodes: dict[int, NodeThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(firn("cluster", "quorum", "describe", "--json"))
    node = next(one for one in (1, 2, 3) if one != told["leader"])
    firn("cluster", "quorum", "remove-voter", str(node))

    def roles() -> dict[int, str]:
        rows = json.loads(firn("cluster", "quorum", "describe", "--json"))["replicas"]
        return {row["node_id"]: row["role"] for row in rows}

    wait_until("it only follows", lambda: roles().get(node) == "observer")
    path = tmp_path / "server.properties"
    settings = dict(nodes[node].settings)
    for key in ("node.id", "log.dirs"):  # as a container has them
        monkeypatch.setenv(f"FIRN_{key.replace('.', '_').upper()}", settings.pop(key))
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    said = firn("cluster", "quorum", "add-voter", "--config", str(path))
    assert said.startswith(f"controller {node} with directory ")
    wait_until("it votes", lambda: roles()[node] in ("voter", "leader"))


def test_offsets_are_told_by_name_time_and_tier(firn: Firn, nodes: dict[int, NodeThread]) -> None:
    create(firn, "counted")
    leader = described(firn, "counted")[0]["leader"]
    with nodes[leader].client() as client:
        talk = Talk(client)
        topic = talk.topic_id("counted")
        wait_until(
            "the leader",
            lambda: talk.produce(topic, [b"x"] * 4, MIDNIGHT).error_code == ErrorCode.none,
        )
    assert firn("offsets", "counted").splitlines() == [
        "topic    partition  earliest  latest",
        "counted  0          0         4",
        "counted  1          0         0",
    ]
    words = ("--time", "2026-01-01T00:00:00.002Z", "--time", "max-timestamp", "--time", "latest-tiered")
    (row,) = json.loads(firn("offsets", "counted:0", *words, "--time", "-4", "--json"))
    assert row["offsets"] == {
        "2026-01-01T00:00:00.002Z": 2, "max-timestamp": 3, "latest-tiered": None, "-4": 0,
    }  # fmt: skip
    assert firn("offsets", "--pattern", "count.*", "--exclude-internal-topics").count("counted") == 2
    assert "no topic matches nope" in firn.refused("offsets", "--pattern", "nope")
    assert "there is no topic nope" in firn.refused("offsets", "nope")
    assert "is not a time" in firn.refused("offsets", "counted", "--time", "soon")


def test_a_leader_that_does_not_answer_hides_no_other_partition(
    firn: Firn, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(firn, "split")
    leaders = {one["partition"]: one["leader"] for one in described(firn, "split")}
    if leaders[0] == leaders[1]:
        firn("cluster", "reassign", "execute", "--topic", "split:0", "--to", str(leaders[0] % 3 + 1))
        wait_until("another leader", lambda: described(firn, "split")[0]["leader"] != leaders[1])
        leaders[0] = leaders[0] % 3 + 1
    ask = Cluster.client

    def silent(cluster: Cluster, broker: int) -> Any:
        if broker == leaders[0]:
            raise TimeoutError("it does not answer in time")
        return ask(cluster, broker)

    monkeypatch.setattr(Cluster, "client", silent)
    (row,) = json.loads(firn("offsets", "split", "--time", "latest", "--json", code=1))
    assert row == {"topic": "split", "partition": 1, "offsets": {"latest": 0}}
    assert firn.err == f"firn offsets: split-0: its leader is node {leaders[0]}: it does not answer in time\n"
    told = json.loads(firn("topic", "delete-records", "split", "--all", "--execute", "--json", code=1))
    assert [one["partition"] for one in told["partitions"]] == [1]


def test_nothing_moves_without_the_throttle_that_was_asked_for(
    firn: Firn, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(firn, "stays")
    before = described(firn, "stays")
    monkeypatch.setattr(cluster_changes, "set_throttle", lambda *_: ["broker 9: it has none"])
    words = (
        "cluster",
        "reassign",
        "execute",
        "--topic",
        "stays",
        "--to",
        "1,2,3",
        "--replication-factor",
        "3",
    )
    assert firn.refused(*words, "--throttle", "1000").splitlines() == [
        "firn cluster: broker 9: it has none",
        "firn cluster: nothing was started: not all brokers have the throttle",
    ]
    assert described(firn, "stays") == before


def test_log_directories_are_told_with_their_replicas(firn: Firn, nodes: dict[int, NodeThread]) -> None:
    create(firn, "kept", replicas=3)

    def told() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(firn("log-dirs", "--topic", "kept", "--json"))
        return rows

    wait_until("all replicas", lambda: [row["replicas"] for row in told()] == [2, 2, 2])
    rows = told()
    assert {row["broker"]: row["directory"] for row in rows} == {
        node: str(one.data) for node, one in nodes.items()
    }
    assert {row["state"] for row in rows} == {"ok"}
    assert {p["topic"] for row in rows for p in row["partitions"]} == {"kept"}
    assert firn("log-dirs", "--broker", "2").splitlines()[1].split()[:3] == ["2", str(nodes[2].data), "ok"]
    assert "broker 9 is not there" in firn.refused("log-dirs", "--broker", "9")
    assert "there is no replica of nope" in firn.refused("log-dirs", "--topic", "nope")


def test_a_broker_that_is_gone_is_forgotten(firn: Firn, nodes: dict[int, NodeThread]) -> None:
    told = json.loads(firn("cluster", "quorum", "describe", "--json"))
    gone = next(one for one in (1, 2, 3) if one != told["leader"])
    create(firn, "lost")
    firn("cluster", "reassign", "execute", "--topic", "lost", "--to", str(gone))
    firn("cluster", "reassign", "verify", "--topic", "lost", "--wait", "30")
    nodes[gone].stop()
    left = Firn(",".join(f"127.0.0.1:{one.port}" for key, one in nodes.items() if key != gone), firn.capsys)
    wait_until("it is fenced", lambda: described(left, "lost")[0]["leader"] < 0, 30)
    said = left.refused("cluster", "elect", "unclean", "--topic", "lost")
    assert "lost-0" in said
    assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in said
    assert "start the brokers that 'firn cluster describe' names" in said
    said = left.refused("offsets", "lost")
    assert "lost-1: it has no leader" in said
    assert f"broker {gone} is fenced: it is not asked" in left.refused("log-dirs")
    assert left("cluster", "unregister", str(gone)) == f"unregistered broker {gone}\n"
    assert "no broker of this id" in left.refused("cluster", "unregister", str(gone))
