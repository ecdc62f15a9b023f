"""Commits that are answered from the bytes of their connection get the answers that all others get."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from service.network.request import AnsweredRun, RequestContext
from service.node import node as node_of_process
from service.serving.run_handlers import RunHandlers
from service.wire.api import ApiKey
from tests.node.conftest import NodeThread, Talk
from tests.node.test_groups_on_a_node import is_loaded
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, encode_request, schema

TOPICS = {"orders": 3, "payments": 1}
CLIENTS = 3
CHUNKS = 200


class CountedRuns(RunHandlers):
    """Counts the commits that it has answered."""

    commits = 0

    def __call__(self, context: RequestContext, data: memoryview, start: int, end: int) -> AnsweredRun | None:
        run = super().__call__(context, data, start, end)
        if run is not None:
            CountedRuns.commits += data[start + 5] == ApiKey.OFFSET_COMMIT
        return run


def make_commit(random: Random, client: int) -> Any:
    """One of few requests, but for its offsets; some name a topic that is not there, or a generation of a
    group that has none."""
    version = 9 if random.randrange(10) else random.choice([7, 8])
    module = schema(ApiKey.OFFSET_COMMIT, version)
    names = ["orders"] if random.randrange(7) else random.choice([["orders", "payments"], ["unknown"]])
    topics = tuple(
        module.OffsetCommitRequestTopic(
            name=name,
            partitions=tuple(
                module.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=random.randrange(1 << 40),
                    committed_metadata="" if random.randrange(30) else "a note",
                )
                for number in range(TOPICS.get(name, 1))
            ),
        )
        for name in names
    )
    return module.OffsetCommitRequest(
        group_id="abc"[client],
        generation_id_or_member_epoch=-1 if random.randrange(15) else 5,
        member_id="",
        topics=topics,
    )


def converse(node: NodeThread, seed: int) -> list[bytes]:
    """What the node answers to clients that send some requests at a time, and what is committed then."""
    random, answers, number = Random(seed), [], 0
    with node.client() as client:
        talk = Talk(client)
        for name, partitions in TOPICS.items():
            talk.create(name, partitions)
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("a",))
        wait_until("both partitions to be loaded", lambda: is_loaded(talk))
    address = f"{node.host}:{node.port}"
    connections = [RawConnection(address) for _ in range(CLIENTS)]
    try:
        for _ in range(CHUNKS):
            of, data, count = random.randrange(CLIENTS), b"", random.choice([1, 1, 1, 3])
            client_id = "one" if random.randrange(15) else "other"
            for _ in range(count):
                number += 1
                frame = encode_request(make_commit(random, of), number, client_id)
                data += len(frame).to_bytes(4) + frame
            connections[of].send(data)
            answers += [connections[of].receive_frame() for _ in range(count)]
        module = schema(ApiKey.OFFSET_FETCH, 8)
        groups = tuple(module.OffsetFetchRequestGroup(group_id=one, topics=None) for one in "abc")
        request = module.OffsetFetchRequest(groups=groups, require_stable=False)
        connections[0].send_frame(encode_request(request, number + 1))
        return [*answers, connections[0].receive_frame()]
    finally:
        for one in connections:
            one.socket.close()


@pytest.mark.parametrize("seed", range(3))
def test_commits_from_bytes_are_answered_like_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(node_of_process, "RunHandlers", CountedRuns)
    monkeypatch.setattr(CountedRuns, "commits", 0)
    told = []
    for name, is_compiled in (("runs", True), ("none", False)):
        monkeypatch.setattr(node_of_process, "COMPILED", is_compiled)
        node = NodeThread(tmp_path / name, offsets_topic_num_partitions="2").start()
        try:
            told.append(converse(node, seed))
        finally:
            node.stop()
        assert node.failure is None
    assert told[0] == told[1]
    assert CountedRuns.commits > 0
