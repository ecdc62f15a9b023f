"""A cluster that is lost with all its disks and comes back by its commands: cuts of its own keeper, `firn
restore`, `firn format --restore`, and the first start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.cli.dev_nodes import agree_on_ports, plan_nodes
from service.cli.main import main
from service.inspect.fsck import fsck
from service.node import cut_cluster
from service.remote.format.tail_object import TailFooter
from service.remote.reading.object_reader import open_cluster_file
from service.remote.reading.tails import open_cuts, open_named_cut, open_tail
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import open_store
from service.remote.stores.store import ObjectStore
from service.replicas.tail_loading import TailLoader
from tests.node.conftest import NodeThread, Talk
from tests.node.heirs import Nodes
from tests.node.requests import DAY, list_offset
from tests.node.test_restored_nodes import all_is_served, committed_offset, filled, read
from tests.support.processes import wait_until
from tests.support.world import WORLD

NONE = ErrorCode.none
GAP = 1_000_000
OFTEN = {"firn.cut.interval.ms": "1000"}


@pytest.fixture
def clusters() -> Iterator[list[Nodes]]:
    """Clusters that are stopped in the end."""
    found: list[Nodes] = []
    yield found
    for one in found:
        one.stop()


def cut_has(bucket: Path, nodes: Nodes, end: int) -> bool:
    """Return whether the newest complete cut has all of "t" and of the groups."""
    store = open_store(bucket.as_uri(), world=WORLD)
    try:
        cuts = open_cuts(store)
    except ObjectNotFound:
        return False
    if cuts.exact is None:
        return False
    cut = open_named_cut(store, cuts.exact)
    rows = cut.topics.get(nodes.image.topics_by_name["t"].id, ())
    groups = cut.topics.get(nodes.image.topics_by_name["__consumer_offsets"].id, ())
    return bool(rows) and rows[0].end >= end and any(row.end for row in groups)


def tails_of(store: ObjectStore, cluster_id: str) -> list[TailFooter]:
    """The footers of tails of the newest cut that this cluster has written."""
    cut = open_named_cut(store, open_cuts(store).newest)
    footers = [open_tail(store, ref) for ref in cut.tails]
    return [one for one in footers if one.cluster_id == cluster_id]


class RestoredNodes(Nodes):
    """One node, or several that are all controllers, formatted by the command for an heir."""

    def __init__(
        self, folder: Path, count: int, bucket: Path, cluster_id: str, file: Path, **settings: str
    ) -> None:
        folder.mkdir()
        common = {
            "firn.remote.url": bucket.as_uri(),
            "broker.heartbeat.interval.ms": "200",
            "broker.session.timeout.ms": "3000",
            **settings,
        }
        voters: list[str] = []
        every = [{**common, "node.id": "1", "log.dirs": str(folder / "node-1")}]
        if count > 1:
            plan = plan_nodes(count, count, agree_on_ports(0, count, count), folder, system_world(), common)
            voters, every = ["-I", plan.initial_controllers], [dict(one.settings) for one in plan.nodes]
        self.nodes = {}
        for one in every:
            given = [word for key, value in one.items() for word in ("--set", f"{key}={value}")]
            assert main(["format", *given, *voters, "-t", cluster_id, "--restore", str(file)]) == 0
            self.nodes[int(one["node.id"])] = NodeThread(Path(one.pop("log.dirs")), None, None, **one)
        self._settings = {int(one["node.id"]): one for one in every}

    def again(self) -> None:
        """Make new processes on the same disks, to be started."""
        self.nodes = {
            node_id: NodeThread(node.data, None, None, **self._settings[node_id])
            for node_id, node in self.nodes.items()
        }


def applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *where: str, brokers: str = "1"
) -> tuple[str, Path]:
    """Return the heir's id and its file."""
    file = tmp_path / "restore.checkpoint"
    capsys.readouterr()
    url = (tmp_path / "bucket").as_uri()
    order = ["restore", "apply", "--from", url, *where, "--brokers", brokers, "-o", str(file), "--json"]
    assert main(order) == 0
    return json.loads(capsys.readouterr().out)["cluster_id"], file


@pytest.mark.thorough
def test_a_lost_node_comes_back_from_its_own_cuts(
    clusters: list[Nodes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    source = Nodes(tmp_path / "source", 1, bucket, None, **OFTEN)
    clusters.append(source.start())
    seen, _ = filled(source)
    wait_until("a cut", lambda: cut_has(bucket, source, 43), 60)
    source.stop()
    cluster_id, file = applied(tmp_path, capsys, "--take-over", "--force")
    store = open_store(bucket.as_uri(), world=WORLD)
    assert open_cluster_file(store).cluster_id == cluster_id
    heir = RestoredNodes(tmp_path / "heir", 1, bucket, cluster_id, file, **OFTEN)
    clusters.append(heir.start())
    all_is_served(heir)
    assert main(["restore", "status", "--bootstrap-server", heir.bootstrap]) == 0
    go_on = 43 + GAP
    assert heir.talk("t", 0, lambda talk: list_offset(talk, -1).offset) == go_on
    assert read(heir, 42) == seen
    assert committed_offset(heir) == 7
    topic_id = heir.image.topics_by_name["t"].id
    answer = heir.talk("t", 0, lambda talk: talk.produce_in_the_end(topic_id, [b"new"], DAY))
    assert (answer.error_code, answer.base_offset) == (NONE, go_on)
    wait_until("a cut of the heir", lambda: cut_has(bucket, heir, go_on + 1), 60)
    heir.stop()
    assert fsck(store).errors == []
    saved = [one for tail in tails_of(store, cluster_id) for one in tail.sections if one.topic_id == topic_id]
    assert min((one.first_offset for one in saved), default=0) == 43, (
        "the source's tails have what was loaded"
    )
    # A second disaster: what the heir took is there, too.
    cluster_id, file = applied(tmp_path, capsys, "--take-over", "--force")
    again = RestoredNodes(tmp_path / "again", 1, bucket, cluster_id, file)
    clusters.append(again.start())
    all_is_served(again)
    assert again.talk("t", 0, lambda talk: list_offset(talk, -1).offset) == go_on + 1 + GAP
    assert read(again, 42) == seen


@pytest.mark.thorough
def test_three_lost_nodes_come_back_as_three(
    clusters: list[Nodes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    source = Nodes(tmp_path / "source", 3, bucket, None, **OFTEN)
    clusters.append(source.start())
    seen, _ = filled(source)
    wait_until("a cut", lambda: cut_has(bucket, source, 43), 60)
    source.stop()
    more = ("--take-over", "--force", "--fit", "--replication-factor", "3")
    cluster_id, file = applied(tmp_path, capsys, *more, brokers="1,2,3")
    heir = RestoredNodes(tmp_path / "heir", 3, bucket, cluster_id, file, **OFTEN)
    clusters.append(heir.start())
    all_is_served(heir)
    assert read(heir, 42) == seen
    assert committed_offset(heir) == 7
    assert len(heir.image.topics_by_name["t"].partitions[0].replicas) == 3
    topic_id = heir.image.topics_by_name["t"].id
    answer = heir.talk("t", 0, lambda talk: talk.produce_in_the_end(topic_id, [b"new"], DAY))
    assert (answer.error_code, answer.base_offset) == (NONE, 43 + GAP)


@pytest.mark.thorough
def test_a_source_that_lives_on_changes_nothing_of_the_heirs(
    clusters: list[Nodes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    source = Nodes(tmp_path / "source", 1, bucket, None, **OFTEN)
    clusters.append(source.start())
    seen, _ = filled(source)
    wait_until("a cut", lambda: cut_has(bucket, source, 43), 60)
    cluster_id, file = applied(tmp_path, capsys, "--take-over", "--force")
    store = open_store(bucket.as_uri(), world=WORLD)

    def documents() -> dict[str, str]:
        found = {info.key: info.etag for info in store.list("")}
        return {key: tag for key, tag in found.items() if key.endswith(("HEAD", "CUT", ".json"))}

    before = documents()
    cold = source.nodes[1].node.parts.cold
    assert cold is not None
    topic_id = source.image.topics_by_name["t"].id
    with source.leader("t").client() as client:
        for _ in range(40):
            Talk(client).produce(topic_id, [b"late" * 100], DAY)
    wait_until("the source to know", lambda: cold.tiering is not None and cold.tiering.displaced, 60)
    assert documents() == before
    heir = RestoredNodes(tmp_path / "heir", 1, bucket, cluster_id, file, **OFTEN)
    clusters.append(heir.start())
    all_is_served(heir)
    assert read(heir, 42) == seen
    wait_until("a cut of the heir", lambda: cut_has(bucket, heir, 43 + GAP), 60)
    source.stop()
    heir.stop()
    assert fsck(store).errors == []


@pytest.mark.thorough
def test_a_clone_serves_beside_its_source(
    clusters: list[Nodes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, other = tmp_path / "bucket", tmp_path / "other"
    source = Nodes(tmp_path / "source", 1, bucket, None, **OFTEN)
    clusters.append(source.start())
    seen, _ = filled(source)
    wait_until("a cut", lambda: cut_has(bucket, source, 43), 60)
    cluster_id, file = applied(tmp_path, capsys, "--to", other.as_uri())
    heir = RestoredNodes(tmp_path / "heir", 1, other, cluster_id, file)
    status = ["restore", "status", "--bootstrap-server"]
    with monkeypatch.context() as context:
        context.setattr(TailLoader, "replicated", lambda *_: None)
        clusters.append(heir.start())
        assert main([*status, heir.bootstrap]) == 1
        assert "not loaded yet" in capsys.readouterr().out
        heir.stop()
    heir.again()
    heir.start()
    all_is_served(heir)
    assert main([*status, heir.bootstrap, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_served"] is True
    assert read(heir, 42) == read(source, 42) == seen
    topic_id = source.image.topics_by_name["t"].id
    answer = source.talk("t", 0, lambda talk: talk.produce_in_the_end(topic_id, [b"on"], DAY))
    assert (answer.error_code, answer.base_offset) == (NONE, 43)


@pytest.mark.thorough
def test_a_tail_that_cannot_be_loaded_keeps_the_others_from_no_cut(
    clusters: list[Nodes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the heir takes comes back from a loose cut of its own, and the damaged tail waits on."""
    monkeypatch.setattr(cut_cluster, "STUCK_MS", 3_000)
    bucket = tmp_path / "bucket"
    source = Nodes(tmp_path / "source", 1, bucket, None, **OFTEN)
    clusters.append(source.start())
    seen, _ = filled(source)
    wait_until("a cut", lambda: cut_has(bucket, source, 43), 60)
    source.stop()
    cluster_id, file = applied(tmp_path, capsys, "--take-over", "--force")
    store = open_store(bucket.as_uri(), world=WORLD)
    damage_internal_topics(store)
    heir = RestoredNodes(tmp_path / "heir", 1, bucket, cluster_id, file, **OFTEN)
    clusters.append(heir.start())
    topic_id, groups = (heir.image.topics_by_name[name].id for name in ("t", "__consumer_offsets"))
    wait_until("its tail to be loaded", lambda: (topic_id, 0) not in heir.image.restored_tails, 60)
    answer = heir.talk("t", 0, lambda talk: talk.produce_in_the_end(topic_id, [b"new"], DAY))
    go_on = 43 + GAP
    assert (answer.error_code, answer.base_offset) == (NONE, go_on)

    def has_new() -> bool:
        cut = open_named_cut(store, open_cuts(store).newest)
        return cut.cluster_id == cluster_id and cut.topics[topic_id][0].end > go_on

    wait_until("a cut of the heir", has_new, 60)
    assert not open_named_cut(store, open_cuts(store).newest).is_exact
    left = {*heir.image.restored_tails}
    assert groups in {place[0] for place in left}
    heir.stop()
    assert [one.what for one in fsck(store).errors if "its checksum is not" not in one.what] == []
    cluster_id, file = applied(tmp_path, capsys, "--take-over", "--force", "--allow-loose")
    again = RestoredNodes(tmp_path / "again", 1, bucket, cluster_id, file)
    clusters.append(again.start())
    wait_until("its tail to be loaded", lambda: (topic_id, 0) not in again.image.restored_tails, 60)
    assert {*again.image.restored_tails} == left
    assert again.talk("t", 0, lambda talk: list_offset(talk, -1).offset) == go_on + 1 + GAP
    assert read(again, 42) == seen


def damage_internal_topics(store: ObjectStore) -> None:
    """Damage what tails of the newest cut have of topics with several partitions."""
    cut = open_named_cut(store, open_cuts(store).newest)
    tailed = {topic for topic, rows in cut.topics.items() if len(rows) > 1}
    for ref in cut.tails:
        data = bytearray(store.get(ref.key, max_size=1 << 30))
        for section in open_tail(store, ref).sections:
            if section.topic_id in tailed:
                data[section.position + 70] ^= 1
        store.put(ref.key, bytes(data))
