"""The groups pages over HTTP, without a browser: no group, many groups, a deleted group."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition

from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from service.wire.offsets import OffsetCommitRequest, OffsetCommitRequestTopic
from tests.process.test_console import ask
from tests.support.clients import Admin
from tests.support.console import console_of
from tests.support.processes import Node, wait_until

MANY = 320
PER_PAGE = 50


def commits(client: BlockingClient, group: str) -> bool:
    """Whether it is taken; partitions of the coordinator may still be loading."""
    one = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(OffsetCommitRequestTopic(name="flights", partitions=(one,)),),
    )
    response = client.request(ApiKey.OFFSET_COMMIT, request, newest=9)
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code == ErrorCode.none


def test_many_groups_are_listed_by_pages_and_looking_at_none_makes_none(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    try:
        node.start()
        with console_of(node.bootstrap, tmp_path, "--survey-every", "0") as url:
            status, _, text = ask(url, "/groups")
            assert (status, "No groups yet" in text) == (200, True)
            assert ask(url, "/group?id=nobody")[0] == 404
            assert not list(node.data.glob("__consumer_offsets-*"))
            Admin(node.bootstrap).create("flights", 1)
            with BlockingClient("127.0.0.1", node.port) as client:
                coordinator = request_module(ApiKey.FIND_COORDINATOR)
                client.request(
                    ApiKey.FIND_COORDINATOR,
                    coordinator.FindCoordinatorRequest(coordinator_keys=("group-000",)),
                )
                for number in range(MANY):
                    wait_until("it is committed", partial(commits, client, f"group-{number:03d}"))
            wait_until("the list is new", lambda: f"{MANY} groups" in ask(url, "/groups")[2])
            pages = -(-MANY // PER_PAGE)
            seen: list[str] = []
            for number in range(1, pages + 1):
                seen += re.findall(r"/group\?id=(group-\d+)", ask(url, f"/groups?page={number}")[2])
            assert seen == [f"group-{n:03d}" for n in range(MANY)]
            assert "Page 7 of 7" in ask(url, "/groups?page=999999999")[2]
            assert "10 match" in ask(url, "/groups?q=GROUP-31")[2]
            status, _, text = ask(url, "/group?id=group-007&page=99")
            assert (status, "flights" in text, "Empty" in text) == (200, True, True)
            # Once looked at it is looked at again, so that who comes back sees how the lag went.
            wait_until("a past", lambda: "<polyline" in ask(url, "/group?id=group-007")[2])
            node.stop()
            assert ask(url, "/group?id=group-007")[0] == 503
            wait_until("it is known to be away", lambda: ask(url, "/groups")[0] == 503)
            assert "does not answer" in ask(url, "/groups")[2]
    finally:
        node.close()
