"""The active controller is cut off from the others, both ways or one: it resigns, and is heard no more, until
it leads again."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from service.records.batch import complete_headers
from service.wire.api import ApiKey, request_module
from tests.support.changes import Changer, Changes, judge
from tests.support.clients import Admin
from tests.support.links import Linked
from tests.support.processes import wait_until
from tests.support.quorums import Member

SEED = int(os.environ.get("SEED", "20261123"))
RESIGNS_S = 3.0
"""1.5 times `controller.quorum.fetch.timeout.ms`"""
LATE_S = 0.5
"""How long a busy machine may keep anybody waiting"""
CUT_S = 7.0
MANY = 2000
"""so many records are lost that no log grows by as many while the test lasts"""


def epoch_began(member: Member, epoch: int) -> float:
    """When a leader's first batch was written (s since 1970): nothing of its epoch is committed earlier."""
    log = member.committed(1 << 62)
    return (
        next(one.max_timestamp for one in complete_headers(log) if one.partition_leader_epoch == epoch) / 1000
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("says", "hears"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.thorough),
        pytest.param(True, False, marks=pytest.mark.thorough),
    ],
    ids=["both ways", "what it says is lost", "what it is told is lost"],
)
def test_a_leader_that_is_cut_off_resigns_and_answers_nothing_after_its_successor(
    says: bool, hears: bool, tmp_path: Path
) -> None:
    print(f"SEED={SEED}")
    with Linked(tmp_path) as cluster:
        members = cluster.start().members
        old = members[cluster.leader()]
        others = [one for one in members.values() if one is not old]
        with Changes([(one.node_id, one.bootstrap) for one in members.values()], 50, SEED) as changes:
            # the old leader is asked itself, too, and not by way of its broker alone
            direct = cluster.controllers[old.node_id]
            changes.changers.append(Changer(100 + old.node_id, direct, 0.05, SEED))
            wait_until("an answer to each", lambda: all(one.answers for one in changes.changers))
            epoch = old.quorum().epoch

            cut_s = time.monotonic()
            if not says:
                cluster.links.cut([old.node_id], [one.node_id for one in others])
            if not hears:
                cluster.links.cut([one.node_id for one in others], [old.node_id])
            wait_until("it to resign", lambda: old.quorum(direct).leader == -1, every=0.01)
            resigned_s = time.monotonic() - cut_s
            wait_until("a successor", lambda: others[0].quorum().leader not in (-1, old.node_id))
            found = others[0].quorum()
            assert found.epoch > epoch
            elsewhere = [one for one in changes.changers if one.node_id in {each.node_id for each in others}]
            wait_until(
                "a change that the successor has done",
                lambda: any(a.sent_s > cut_s + resigned_s for one in elsewhere for a in one.answers),
            )
            wait_until("what is late to have come", lambda: time.monotonic() > cut_s + CUT_S)
            assert old.quorum(direct).leader == -1
            mended_s = time.monotonic()
            cluster.links.mend()

            wait_until("the old leader to follow", lambda: old.quorum()[:2] == found[:2])
            changes.wait_for_next(time.monotonic())
            began_s = epoch_began(members[found.leader], found.epoch) - time.time() + time.monotonic()
            by_leader, by_broker = (
                [answer for one in changes.changers if one.node_id == node_id for answer in one.answers]
                for node_id in (100 + old.node_id, old.node_id)
            )
            assert max(answer.answered_s for answer in by_leader) < began_s
            # A broker keeps an answer back until it knows the change itself, for as long as it may.
            late = [one for one in by_broker if one.sent_s > cut_s and began_s < one.answered_s < mended_s]
            assert late == []
            print(
                f"cut off, node {old.node_id} resigned after {resigned_s:.2f} s; node {found.leader} led "
                f"after {began_s - cut_s:.2f} s; the last answer of the old one came after "
                f"{max(answer.answered_s for answer in by_leader) - cut_s:.2f} s"
            )
            judge(changes, list(members.values()))
        assert resigned_s < RESIGNS_S + LATE_S
        end = members[cluster.leader()].quorum().high_watermark
        for one in members.values():
            one.kill()
        assert len({one.committed(end) for one in members.values()}) == 1


def ask_for_many(controller: str) -> ErrorCode:
    """Of a controller itself, once: who is refused by it asks nobody else."""
    host, _, port = controller.rpartition(":")
    module = request_module(ApiKey.CREATE_TOPICS)
    topic = module.CreatableTopic(
        name="lost", num_partitions=MANY, replication_factor=1, assignments=(), configs=()
    )
    request = module.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=60))
    with BlockingClient(host, int(port), "test", timeout_s=60) as client:
        answer: ErrorCode = client.request(ApiKey.CREATE_TOPICS, request).topics[0].error_code
        return answer


@pytest.mark.timeout(300)
def test_a_leader_whose_records_were_truncated_leads_again(tmp_path: Path) -> None:
    with Linked(tmp_path) as cluster:
        members = cluster.start().members
        old = members[cluster.leader()]
        others = [node_id for node_id in members if node_id != old.node_id]
        cluster.links.cut([old.node_id], others)
        cluster.links.cut(others, [old.node_id])
        # it writes that, tells nobody, and resigns
        assert ask_for_many(cluster.controllers[old.node_id]) is ErrorCode.not_controller
        wait_until("a successor", lambda: members[others[0]].quorum().leader in others)
        lost_end = sum(path.stat().st_size for path in old.metadata_log.glob("*.log"))
        assert lost_end > 50 * MANY
        cluster.links.mend()
        leader = cluster.leader()
        while leader != old.node_id:
            wait_until("it to follow", lambda: old.quorum().leader == cluster.leader())
            # Whose vote it gets has only just begun to wait for somebody to stand.
            asleep = members[next(one for one in others if one != leader)].process
            assert asleep is not None
            asleep.send_signal(signal.SIGSTOP)
            try:
                members[leader].kill()
                members[leader].start()
            finally:
                asleep.send_signal(signal.SIGCONT)
            leader = cluster.leader()
            print(f"node {leader} leads", flush=True)
        admin = Admin(old.bootstrap)
        admin.create("kept")
        assert "lost" not in admin.topics()
        wait_until("all know it", lambda: all("kept" in one.topics() for one in members.values()))
