"""The secured cluster world: histories are clean and the same each time, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from service.metadata.records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
)
from simulator.cluster.access import ALLOW, DENY, LITERAL, READ, TOPIC, History, Right, Use
from simulator.cluster.access_plants import OF_ACCESS
from simulator.cluster.plants import find
from simulator.cluster.playing import draw_secured, play_apart, play_many
from simulator.loop import Loop
from simulator.model import Violation
from simulator.network import Network
from simulator.process import Process
from simulator.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
SHORT_SEED = 4


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_histories_with_users_are_clean() -> None:
    for outcome in play_many(range(1, 41), os.cpu_count() or 1, drawn=draw_secured):
        again = f"make sim-secured SEED={outcome.seed} HISTORIES=1"
        assert outcome.problem is None, f"{outcome.problem}\nagain: {again}"


def test_a_history_with_users_is_clean_and_the_same_under_another_hash_seed() -> None:
    program = (
        "from simulator.cluster.playing import draw_secured, play_apart\n"
        f"print(play_apart(draw_secured({SHORT_SEED})).digest)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        outcome = play_apart(draw_secured(SHORT_SEED))
        assert outcome.problem is None, f"make sim-secured SEED={SHORT_SEED} HISTORIES=1"
        assert outcome.calls["uses"]
        assert outcome.calls["refusals"]
        assert outcome.calls["logins"]
        assert outcome.calls["login_refusals"]
        assert other.communicate()[0].strip() == outcome.digest


def test_a_quick_commit_that_nobody_has_asked_about_is_found() -> None:
    problem = play_apart(draw_secured(SHORT_SEED), before=OF_ACCESS["quick_commit_not_asked"]).problem
    assert problem is not None
    assert problem.startswith("S1: n3.1 lets bob do (Right(operation=3, kind=2, name='t0'),)")


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OF_ACCESS)
def test_a_planted_bug_of_access_is_found(name: str) -> None:
    assert find(OF_ACCESS[name], within=100, secured=True) is not None


# The oracle, without a world


ALICE_READS = AccessControlEntryRecord(
    id=UUID(int=1),
    resource_type=TOPIC,
    resource_name="t0",
    pattern_type=LITERAL,
    principal="User:alice",
    host="*",
    operation=READ,
    permission_type=ALLOW,
)
READS = Right(READ, TOPIC, "t0")


class _Told:
    """A history of one process, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: self.now_s, "10.0.0.1")

    def learns(self, at_s: float, record: Any, offset: int) -> None:
        """Commit a record; the process has it at once."""
        self.now_s = at_s
        self.history.learn(record, offset)
        self.history.has_image("n1.1", offset)

    def judge(self, from_s: float, *, granted: bool, not_before_s: float = 0.0) -> None:
        self.history.judge("n1.1", "alice", Use((READS,), granted, not_before_s), from_s)


def test_a_right_is_used_under_an_image_that_the_process_had_meanwhile() -> None:
    told = _Told()
    told.learns(1.0, ALICE_READS, 5)
    told.learns(3.0, RemoveAccessControlEntryRecord(id=UUID(int=1)), 9)
    told.judge(2.0, granted=True)
    told.judge(2.0, granted=False)
    told.judge(4.0, granted=False)
    with pytest.raises(Violation, match=r"S1: n1\.1 lets alice do"):
        told.judge(4.0, granted=True)
    with pytest.raises(Violation, match="S1"):
        told.judge(2.0, granted=True, not_before_s=3.5)


def test_a_refusal_takes_an_image_without_the_right() -> None:
    told = _Told()
    told.learns(1.0, ALICE_READS, 5)
    told.judge(2.0, granted=True)
    with pytest.raises(Violation, match=r"S2: n1\.1 does not let alice do"):
        told.judge(2.0, granted=False)


def test_a_denial_comes_before_every_right() -> None:
    told = _Told()
    told.learns(1.0, ALICE_READS, 5)
    denial = AccessControlEntryRecord(
        id=UUID(int=2),
        resource_type=TOPIC,
        resource_name="*",
        pattern_type=LITERAL,
        principal="User:*",
        host="10.0.0.1",
        operation=READ,
        permission_type=DENY,
    )
    told.learns(2.0, denial, 6)
    with pytest.raises(Violation, match="S1"):
        told.judge(3.0, granted=True)


def test_a_process_is_judged_by_all_that_was_committed_when_it_started() -> None:
    told = _Told()
    told.learns(1.0, ALICE_READS, 5)
    told.history.learn(RemoveAccessControlEntryRecord(id=UUID(int=1)), 9)
    told.history.starts("n1.2")
    told.history.has_image("n1.2", 5)
    with pytest.raises(Violation, match=r"S5: n1\.2 lets alice do"):
        told.history.judge("n1.2", "alice", Use((READS,), granted=True), 2.0)
    told.now_s = 3.0
    told.history.has_image("n1.2", 9)
    told.history.judge("n1.2", "alice", Use((READS,), granted=False), 2.0)


def test_a_password_is_taken_that_an_image_has() -> None:
    told = _Told()
    told.history.passwords[b"salt"] = "hush-1"
    record = UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"salt", stored_key=b"s", server_key=b"k", iterations=4096
    )
    told.learns(1.0, record, 5)
    told.history.logged_in("n1.1", "alice", 1, "hush-1", 2.0, accepted=True)
    told.history.logged_in("n1.1", "alice", 1, "hush-2", 2.0, accepted=False)
    for password, accepted in (("hush-1", False), ("hush-2", True)):
        with pytest.raises(Violation, match="S3"):
            told.history.logged_in("n1.1", "alice", 1, password, 2.0, accepted=accepted)


def test_a_throttle_takes_a_quota() -> None:
    told = _Told()
    told.learns(1.0, ALICE_READS, 5)
    with pytest.raises(Violation, match=r"S8: n1\.1 throttles alice"):
        told.history.throttled("n1.1", "alice", 2.0)


def test_bits_flip_on_a_link_until_it_heals_and_then_its_connections_end() -> None:
    import asyncio

    loop = Loop(Random(3))
    network = Network(loop, Random(3), Trace(lambda: loop.now_s))
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                heard.append(data)
        except ConnectionResetError:
            heard.append(b"reset")
        writer.close()

    async def main() -> None:
        await Process("n2.1").run(lambda: loop.create_task(asyncio.start_server(serve, "n2", 9)))
        _, writer = await asyncio.open_connection("n2", 9)
        network.links.flips[("n1", "n2")] = 1.0
        writer.write(bytes(20))
        await asyncio.sleep(1)
        got = b"".join(heard)
        assert len(got) == 20
        assert sum(byte.bit_count() for byte in got) == 1
        network.heal(set())
        await asyncio.sleep(1)
        assert heard[-1] == b"reset"
        _, writer = await asyncio.open_connection("n2", 9)
        writer.write(bytes(20))
        await asyncio.sleep(1)
        assert heard[-1] == bytes(20)
        writer.close()
        await asyncio.sleep(1)

    loop.run_until_complete(Process("n1.1").run(lambda: loop.create_task(main())))
