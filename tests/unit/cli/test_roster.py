"""Nodes that are started again, and the rolling restart: what is done next, and what is printed."""

from __future__ import annotations

from service.cli.roster import RestartPauses, RollingRestart, Roster
from service.health.facts import ClusterFacts, NodeFacts, PartitionFacts, ViewFacts
from service.health.wholeness import lacks


def serving(*ids: int) -> Roster:
    roster = Roster(ids)
    for one in ids:
        roster.note_line(one, f"ready: node {one} on h:{one}")
    return roster


class TestRestarts:
    def test_a_node_that_ends_is_started_again(self) -> None:
        roster = serving(1, 1001)
        assert roster.all_serve
        assert roster.note_pause(1001, -9, 1.0) == [
            "node 1001 was ended by SIGKILL; it is started again in 1 s"
        ]
        assert (roster.living, roster.waiting, roster.all_serve) == ((1,), frozenset({1001}), False)
        roster.note_start(1001)
        assert not roster.all_serve
        assert roster.note_line(1001, "ready: node 1001 on h:1001") == ["node 1001 serves again on h:1001"]
        assert roster.all_serve

    def test_nothing_is_ready_while_one_waits(self) -> None:
        roster = Roster([1, 2])
        assert roster.note_pause(2, 1, 1.0) == ["node 2 ended with status 1; it is started again in 1 s"]
        assert roster.note_line(1, "ready: node 1 on h:1") == []
        roster.note_start(2)
        assert roster.note_line(2, "ready: node 2 on h:2") == ["ready: nodes 1, 2 on h:1,h:2"]

    def test_a_start_is_hopeless_only_if_no_node_has_ever_served(self) -> None:
        roster = Roster([1, 2])
        roster.note_pause(1, 1, 1.0)
        assert not roster.is_hopeless
        roster.note_start(1)
        roster.note_pause(2, 1, 1.0)
        assert roster.is_hopeless
        roster = serving(1, 2)
        roster.note_pause(1, 1, 1.0)
        roster.note_pause(2, 1, 1.0)
        assert not roster.is_hopeless

    def test_a_stopped_roster_starts_nothing_again(self) -> None:
        roster = serving(1, 2)
        roster.note_pause(2, 1, 1.0)
        roster.stop()
        assert (roster.waiting, roster.note_exit(1, 0), roster.exit_code) == (frozenset(), [], 0)

    def test_pauses_grow_to_a_minute_for_each_node_by_itself(self) -> None:
        pauses = RestartPauses()
        assert [pauses.after_run(1, 0.5) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert pauses.after_run(2, 0.5) == 1
        assert pauses.after_run(1, 121.0) == 1


class TestRollingRestart:
    def test_each_is_stopped_once_all_say_that_nothing_is_lacking(self) -> None:
        roll = RollingRestart([1001, 1])
        number = roll.begin_round([1, 1001])
        assert roll.note_answer(1, number, "") == []
        assert not roll.is_whole
        assert roll.note_answer(1001, number, "") == []
        assert (roll.is_whole, roll.is_done, roll.next_node(), roll.stopped) == (True, False, 1001, 1001)
        assert not roll.is_whole  # what was said before it was stopped does not count after it
        number = roll.begin_round([1, 1001])
        lacking = "3 partitions are under-replicated"
        words = [f"rolling restart: waits, as node 1 says: {lacking}"]
        assert roll.note_answer(1, number, lacking) == words
        roll.note_answer(1001, number, "")
        assert not roll.is_whole
        number = roll.begin_round([1, 1001])
        assert roll.note_answer(1, number, lacking) == []  # said once
        for last in (1, None):
            number = roll.begin_round([1, 1001])
            for one in (1, 1001):
                roll.note_answer(one, number, "")
            assert roll.is_whole
            if last is not None:
                assert roll.next_node() == last
        assert roll.is_done

    def test_answers_of_another_round_do_not_count(self) -> None:
        roll = RollingRestart([1])
        old = roll.begin_round([1])
        roll.begin_round([1])
        roll.note_answer(1, old, "")
        roll.note_answer(7, old + 1, "")
        assert not roll.is_whole

    def test_a_round_without_nodes_is_not_whole(self) -> None:
        roll = RollingRestart([])
        assert (roll.is_whole, roll.is_done) == (False, False)


class TestWholeness:
    FINE = NodeFacts(1, view=ViewFacts(1, 0), cluster=ClusterFacts(partitions=PartitionFacts()))

    def test_a_node_that_knows_a_whole_cluster_lacks_nothing(self) -> None:
        assert list(lacks(self.FINE)) == []
        assert list(lacks(self.FINE._replace(view=ViewFacts(1, None)))) == []  # the only voter

    def test_a_node_that_does_not_know_lacks_something(self) -> None:
        for view in (None, ViewFacts(1, 60_000)):
            assert list(lacks(self.FINE._replace(view=view))) == [
                "its metadata are not confirmed by a controller"
            ]
        assert list(lacks(self.FINE._replace(cluster=None))) != []
        unknown = ClusterFacts(partitions=None)
        assert list(lacks(self.FINE._replace(cluster=unknown))) != []

    def test_each_that_a_restart_must_wait_for(self) -> None:
        partitions = PartitionFacts(offline=1, under_replicated=2)
        worse = self.FINE._replace(
            is_serving=False,
            waits=("logs are being opened",),
            cluster=ClusterFacts(partitions=partitions),
            offline_partitions=3,
            failed_shards=4,
        )
        assert list(lacks(worse)) == [
            "it does not serve",
            "logs are being opened",
            "1 partitions have no leader",
            "2 partitions are under-replicated",
            "3 partitions cannot be opened",
            "4 partitions of coordinators could not be loaded",
        ]
