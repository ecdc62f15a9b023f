"""A restored cluster from its first start until all is served: one node, and three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.records.batch import iter_headers
from service.replicas.tail_loading import TailLoader
from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk
from tests.node.heirs import GAP, Nodes, lose
from tests.node.requests import DAY, list_offset, values
from tests.support.processes import wait_until
from tests.support.transactional_client import TransactionalClient, settled

NONE, REFUSED = ErrorCode.none, ErrorCode.kafka_storage_error
TIERED = {
    "remote_storage_enable": "true",
    "local_retention_bytes": "1",
    "internal_segment_bytes": "4000",
    "file_delete_delay_ms": "0",
}


@pytest.fixture
def clusters() -> Iterator[list[Nodes]]:
    """Clusters that are stopped in the end."""
    found: list[Nodes] = []
    yield found
    for one in found:
        one.stop()


def begin(
    clusters: list[Nodes], folder: Path, name: str, count: int, first: Any = None, **settings: str
) -> Nodes:
    nodes = Nodes(folder / name, count, folder / "bucket", first, **settings)
    clusters.append(nodes)
    return nodes.start()


def filled(nodes: Nodes) -> tuple[list[bytes], TransactionalClient]:
    """Fill a tiered topic, of which part is in the bucket; leave a transaction open. Returns what a reader of
    committed transactions sees."""
    node = next(iter(nodes.nodes.values()))
    with node.client() as client:
        talk = Talk(client)
        wait_until("the topic", lambda: talk.create("t", 1, **TIERED).error_code in (0, 36))
    written = [b"value %d " % number + b"." * 300 for number in range(40)]
    topic_id = nodes.image.topics_by_name["t"].id
    for value in written:
        produced(nodes, value)
    key = (topic_id, 0)
    wait_until(
        "an archive", lambda: (one := nodes.image.remote.get(key)) is not None and one.segments > 2, 60
    )
    producer = TransactionalClient(nodes.bootstrap, "one")
    assert settled(producer, producer.init) == NONE
    assert producer.produce("t", 0, [b"in a transaction"]).error_code == NONE
    assert settled(producer, lambda: producer.end(commit=True)) == NONE
    assert producer.produce("t", 0, [b"of an open transaction"]).error_code == NONE
    assert committed_offset(nodes, set_to=7) == 7
    return [*written, b"in a transaction"], producer


def produced(nodes: Nodes, value: bytes) -> int:
    """Produce a record in the end, whoever leads; return its offset."""
    topic_id = nodes.image.topics_by_name["t"].id
    answers: list[Any] = []

    def taken() -> bool:
        answers.append(nodes.talk("t", 0, lambda talk: talk.produce(topic_id, [value], DAY)))
        return bool(answers[-1].error_code == NONE)

    wait_until("the record to be taken", taken, 60)
    return int(answers[-1].base_offset)


def committed_offset(nodes: Nodes, set_to: int | None = None) -> int:
    """Return the group's offset, after setting it, once its coordinator serves."""
    module = request_module(ApiKey.OFFSET_FETCH)
    found: list[int] = []

    def asked() -> bool:
        for node in nodes.nodes.values():
            if not node._thread.is_alive():
                continue
            with node.client() as client:
                talk = Talk(client)
                names = request_module(ApiKey.FIND_COORDINATOR)
                talk.client.request(
                    ApiKey.FIND_COORDINATOR, names.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))
                )  # which makes the topic
                if set_to is not None and not commits(talk, nodes, set_to):
                    continue
                group = module.OffsetFetchRequestGroup(group_id="g", topics=None)
                answer = talk(
                    ApiKey.OFFSET_FETCH, "OffsetFetchRequest", groups=(group,), require_stable=False
                )
                of_group = answer.groups[0]
                if of_group.error_code == NONE:
                    found.append(of_group.topics[0].partitions[0].committed_offset)
                    return True
        return False

    wait_until("the group's coordinator", asked, 60)
    return found[0]


def commits(talk: Talk, nodes: Nodes, offset: int) -> bool:
    module = request_module(ApiKey.OFFSET_COMMIT)
    one = module.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = module.OffsetCommitRequestTopic(topic_id=nodes.image.topics_by_name["t"].id, partitions=(one,))
    answer = talk(ApiKey.OFFSET_COMMIT, "OffsetCommitRequest", group_id="g", member_id="", topics=(topic,))
    return bool(answer.topics[0].partitions[0].error_code == NONE)


def read(nodes: Nodes, end: int, isolation: int = 1) -> list[bytes | None]:
    """Return what a client shows that reads committed transactions up to an offset."""
    topic_id = nodes.image.topics_by_name["t"].id
    at, found = 0, []
    while at < end:

        def fetch(talk: Talk, at: int = at) -> Any:
            return talk.fetch(topic_id, at, isolation_level=isolation, max_wait=5000)

        answer = nodes.talk("t", 0, fetch)
        assert answer.error_code == NONE
        data = answer.records or b""
        for header in iter_headers(data):
            at = header.next_offset
            batch = data[header.position : header.position + header.size]
            if not header.is_control:
                found += values(batch)
    return found


def all_is_served(nodes: Nodes) -> None:
    wait_until("all tails to be loaded", lambda: not nodes.image.restored_tails, 60)


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_lost_cluster_comes_back_at_one_moment(clusters: list[Nodes], tmp_path: Path, count: int) -> None:
    source = begin(clusters, tmp_path, "source", count)
    seen, producer = filled(source)
    assert source.image.remote[source.image.topics_by_name["t"].id, 0].end_offset < 43
    heir = begin(clusters, tmp_path, "heir", count, lose(source, tmp_path / "bucket", range(1, count + 1)))
    all_is_served(heir)
    topic_id = heir.image.topics_by_name["t"].id
    go_on = 43 + GAP
    assert heir.talk("t", 0, lambda talk: list_offset(talk, -1).offset) == go_on
    assert read(heir, 42) == seen, "up to the open transaction"
    assert committed_offset(heir) == 7
    assert produced(heir, b"new") == go_on
    again = TransactionalClient(heir.bootstrap, "one")
    assert settled(again, again.init) == NONE, "which aborts the open transaction"
    assert again.producer_id == producer.producer_id
    assert again.epoch > producer.epoch
    wait_until(
        "the end of the open transaction",
        lambda: heir.talk("t", 0, lambda talk: talk.fetch(topic_id, 0).last_stable_offset) == go_on + 2,
    )
    if count == 3:
        same_logs(heir, "t-0")


def same_logs(nodes: Nodes, name: str) -> None:
    """Check that all replicas have the same bytes above the archive, once they are in sync."""
    topic, index = name.rsplit("-", 1)
    wait_until(
        "all replicas in sync",
        lambda: len(nodes.image.topics_by_name[topic].partitions[int(index)].isr) == 3,
        60,
    )
    nodes.stop()
    logs = [
        b"".join(path.read_bytes() for path in sorted((node.data / name).glob("*.log")))
        for node in nodes.nodes.values()
    ]
    assert logs[0]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.thorough
def test_leaders_that_change_during_the_load_lose_nothing(
    clusters: list[Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first leader loads and never tells it; the next one begins anew."""
    source = begin(clusters, tmp_path, "source", 3)
    seen, _ = filled(source)
    silent = [True]
    replicated = TailLoader.replicated

    def maybe(self: TailLoader, tip: Any) -> None:
        if not silent[0] or tip.topic != "t":
            replicated(self, tip)

    monkeypatch.setattr(TailLoader, "replicated", maybe)
    heir = begin(clusters, tmp_path, "heir", 3, lose(source, tmp_path / "bucket", (1, 2, 3)))
    topic_id = heir.image.topics_by_name["t"].id

    def state() -> Any:
        return heir.image.topics_by_name["t"].partitions[0]

    wait_until("followers that follow", lambda: len(state().isr) == 3, 60)
    wait_until("internal topics", lambda: list(heir.image.restored_tails) == [(topic_id, 0)], 60)
    chain_end = heir.image.remote[topic_id, 0].end_offset
    first = heir.talk("t", 0, lambda talk: talk.fetch(topic_id, 0))
    assert (first.error_code, first.high_watermark) == (NONE, chain_end)
    assert values(first.records)[0] == seen[0], "what is in the bucket is served"
    waits = heir.talk("t", 0, lambda talk: talk.fetch(topic_id, chain_end))
    assert (waits.error_code, waits.records or b"") == (NONE, b"")
    assert heir.talk("t", 0, lambda talk: talk.produce(topic_id, [b"x"], DAY)).error_code == REFUSED
    assert heir.talk("t", 0, lambda talk: list_offset(talk, -1).offset) == 43 + GAP
    before = state().leader
    heir.stop(before)
    wait_until("another leader", lambda: state().leader not in (before, -1), 60)
    silent[0] = False
    heir.nodes[before] = again(heir, before)
    all_is_served(heir)
    assert read(heir, 42) == seen
    same_logs(heir, "t-0")


def again(nodes: Nodes, node_id: int) -> Any:
    """Start a node once more."""
    before = nodes.nodes[node_id]
    node = type(before)(
        before.data, None, None, **{k.replace(".", "_"): v for k, v in before.settings.items()}
    )
    node.settings = before.settings
    return node.start()
