"""Cuts as the prefix's keeper takes them: what is asked, written, kept and deleted (T19), whatever fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.remote.format.cut_codec import decode_cuts, encode_cuts
from service.remote.format.documents import CHECKSUM, seal
from service.remote.format.keys import CutKey, cut_key
from service.tiering.cuts.round import CutStep
from service.tiering.tasks import Task
from tests.unit.tiering.cut_world import GRACE_MS, OTHER, TOPIC, CutWorld, Harm, Log, number_of
from tests.unit.tiering.world import Fault, once

BEGIN, TAKE, SAVE, VOID = CutStep.BEGIN, CutStep.TAKE, CutStep.SAVE, CutStep.VOID


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    world = CutWorld(tmp_path)
    world.logs = {(TOPIC, 0): Log(1, 5), (TOPIC, 1): Log(2, 7), (OTHER, 0): Log(3, 2)}
    world.begin()
    return world


def steps(world: CutWorld, broker_id: int) -> list[CutStep]:
    return [step for step, _, _ in world.cluster.fakes[broker_id].asked]


def test_a_cut_names_ends_tails_and_metadata_of_all_brokers(world: CutWorld) -> None:
    world.round()
    cut = world.newest()
    assert (cut.cut, cut.is_exact, cut.metadata.end_offset, cut.metadata_end) == (1, True, 10, 10)
    assert {topic: [row.end for row in rows] for topic, rows in cut.topics.items()} == {
        TOPIC: [5, 7],
        OTHER: [2],
    }
    assert [row.saved for rows in cut.topics.values() for row in rows] == [5, 7, 2]
    assert len(cut.tails) == 3, "one of each broker"
    assert world.complete() == [1]
    assert steps(world, 2) == [BEGIN, TAKE, SAVE]
    assert world.cluster.fakes[2].asked[0] == (BEGIN, 1, 20)
    world.cluster.metadata_end = 25
    world.round()
    cut = world.newest()
    assert (cut.cut, cut.metadata.end_offset, cut.metadata_end, cut.metadata_epoch) == (2, 10, 25, 2)
    assert len(cut.tails) == 4, "and the keeper's of the metadata"
    assert world.cluster.reached == [10, 25]
    world.check_kept()


def test_a_cluster_that_is_idle_writes_nothing(world: CutWorld) -> None:
    world.round()
    world.cluster.metadata_end += 3
    world.cluster.records_of_nothing = set(range(10, 13))
    writes: list[str] = []
    world.store.decide = lambda operation, key: writes.append(f"{operation} {key}") or Fault.PASS  # type: ignore[func-returns-value]
    for _ in range(5):
        world.round()
    assert writes == []
    assert world.numbers() == [1]
    assert world.voids() == 0
    assert steps(world, 2)[3:6] == [BEGIN, TAKE, VOID]
    keeper = world.manager.metrics.cut_keeper
    assert keeper.complete_ms == world.clock.now_ms(), "all that there is lies in the bucket"


def test_new_records_are_saved_once_and_named_with_what_was_there(world: CutWorld) -> None:
    world.round()
    first = world.newest().tails
    world.logs[TOPIC, 1].end = 20
    world.round()
    cut = world.newest()
    assert (cut.cut, cut.follows) == (2, 1)
    assert set(first) < set(cut.tails)
    assert [number_of(ref) for ref in cut.tails] == [1, 1, 1, 2]
    assert cut.topics[TOPIC][1].saved == 20
    world.check_kept()


def test_tails_whose_records_are_in_the_chain_are_named_no_more(world: CutWorld) -> None:
    world.round()
    world.commit_chain((TOPIC, 1), 7)
    world.logs[TOPIC, 0].end = 6
    world.round()
    assert not any(f"-{2:010d}-" in ref.key for ref in world.newest().tails)
    assert world.complete() == [1, 2]
    world.check_kept()


def test_metadata_that_changes_makes_a_cut_and_idle_records_none(world: CutWorld) -> None:
    world.round()
    world.cluster.metadata_end = 14
    world.cluster.records_of_nothing = {10, 11, 12, 13}
    world.round()
    assert world.numbers() == [1]
    world.cluster.metadata_end = 15
    world.round()
    cut = world.newest()
    assert (cut.cut, cut.metadata.end_offset, cut.metadata_end) == (2, 10, 15)
    world.check_kept()


def test_a_newer_checkpoint_stands_for_the_records_before_it(world: CutWorld) -> None:
    world.cluster.metadata_end = 25
    world.round()
    world.cluster.metadata_end = 30
    world.manager.maintenance.topics_changed()
    world.clock.advance(60_000)
    world.run()
    world.logs[TOPIC, 0].end = 6
    world.round()
    cut = world.newest()
    assert (cut.metadata.end_offset, cut.metadata_end) == (30, 30)
    assert len(cut.tails) == 4, "none of the metadata"
    world.check_kept()


def test_a_log_that_lacks_records_behind_the_checkpoint_gets_a_newer_one(world: CutWorld) -> None:
    world.round()
    world.cluster.metadata_end, world.cluster.log_start = 40, 20
    world.round()
    assert world.voids() == 1
    world.run()
    world.round()
    assert world.newest().metadata.end_offset == 40
    world.check_kept()


# -- complete


def test_a_cut_is_complete_once_the_chain_has_what_it_waits_for(world: CutWorld) -> None:
    world.logs[TOPIC, 1].waits = True
    world.round()
    assert world.complete() == []
    assert [str(tip) for tip in world.manager.metrics.cut_keeper.lacking] == ["events-1"]
    assert world.newest().topics[TOPIC][1].waits
    world.commit_chain((TOPIC, 1), 7)
    world.round()
    assert (world.numbers(), world.complete()) == ([1], [1])
    assert world.manager.metrics.cut_keeper.lacking == {}
    world.check_kept()


def test_partitions_are_named_that_keep_cuts_from_being_complete_for_long(world: CutWorld) -> None:
    metrics = world.manager.metrics.cut_keeper
    metrics.interval_ms, metrics.since_ms = 10_000, world.clock.now_ms()
    world.logs[TOPIC, 1].waits = True
    world.round()
    assert metrics.overdue(world.clock.now_ms()) == {}, "it may wait for its segment"
    for _ in range(3):
        world.round()
    [(tip, why)] = metrics.overdue(world.clock.now_ms()).items()
    assert str(tip) == "events-1"
    assert why == "cut 1 is not complete before the bucket has its records below offset 7"
    metrics.clear()
    assert metrics.age_ms(world.clock.now_ms()) is None


def test_a_chain_of_another_past_completes_no_cut(world: CutWorld) -> None:
    """An unclean leader has other records at the same offsets."""
    world.logs[TOPIC, 1].waits = True
    world.round()
    world.commit_chain((TOPIC, 1), 9, epoch=4)
    world.round()
    assert world.complete() == []


def test_a_partition_that_is_not_tailed_keeps_no_cut_from_being_complete(world: CutWorld) -> None:
    world.logs[TOPIC, 1].is_tailed = False
    world.round()
    row = world.newest().topics[TOPIC][1]
    assert (row.saved, row.end, row.waits) == (0, 7, False)
    assert world.complete() == [1]


def test_a_partition_that_waits_no_longer_is_saved_although_nothing_is_new(world: CutWorld) -> None:
    world.logs[TOPIC, 1].waits = True
    world.round()
    world.round()
    assert (world.numbers(), world.complete()) == ([1], [])
    world.logs[TOPIC, 1].waits = False
    world.round()
    assert (world.numbers(), world.complete()) == ([1, 2], [2])
    world.check_kept()


# -- what fails


@pytest.mark.parametrize("harm", list(Harm))
@pytest.mark.parametrize("step", [BEGIN, TAKE, SAVE])
def test_an_answer_that_is_lost_late_or_no_makes_the_cut_void_and_the_next_has_all(
    world: CutWorld, step: CutStep, harm: Harm
) -> None:
    world.cluster.harm = lambda broker_id, asked: harm if (broker_id, asked) == (2, step) else None
    world.round()
    assert (world.numbers(), world.voids()) == ([], 1)
    assert steps(world, 1)[-1] is VOID
    world.cluster.harm = lambda broker_id, asked: None
    world.round()
    assert (world.numbers(), world.complete()) == ([1], [1])
    assert world.newest().is_exact
    assert len(world.keys("tail")) == 3, "nothing went up twice"
    world.check_kept()


def test_after_three_cuts_of_which_no_try_found_a_moment_the_next_does_without_gates(world: CutWorld) -> None:
    world.cluster.harm = lambda broker_id, step: Harm.REFUSED if (broker_id, step) == (2, TAKE) else None
    for _ in range(24):
        world.round()
    assert world.numbers() == []
    world.cluster.harm = lambda broker_id, step: Harm.REFUSED if step is BEGIN else None
    world.round()
    assert not world.newest().is_exact
    assert world.cluster.fakes[1].asked[-2:] == [(TAKE, 1, 0), (SAVE, 1, 0)]
    world.cluster.harm = lambda broker_id, step: None
    world.round()
    assert world.newest().is_exact
    assert world.numbers() == [1, 2]


def test_a_partition_without_a_leader_makes_the_cut_loose(world: CutWorld) -> None:
    world.round()
    world.logs[TOPIC, 1].leader, world.logs[TOPIC, 1].epoch = -1, 4
    world.logs[TOPIC, 0].end = 6
    world.round()
    cut = world.newest()
    assert not cut.is_exact
    assert cut.topics[TOPIC][1][:4] == (-1, 0, 7, 7), "as the cut before has it"
    assert world.complete() == [1, 2]
    world.check_kept()


def test_a_partition_led_in_another_epoch_makes_the_cut_void(world: CutWorld) -> None:
    asked = world.cluster.partitions
    world.cluster.partitions = lambda: (  # type: ignore[method-assign]
        one._replace(leader_epoch=one.leader_epoch + (one.leader_id == 2)) for one in asked()
    )
    world.round()
    assert (world.numbers(), world.voids()) == ([], 1)
    assert "partition 1" in world.manager.metrics.failing[Task.CUT, None]


def test_a_tail_that_is_not_what_its_broker_says_makes_the_cut_void(world: CutWorld) -> None:
    world.cluster.fakes[3].wrong_cut = 99
    world.round()
    assert (world.numbers(), world.voids()) == ([], 1)


def test_a_tail_that_is_gone_makes_the_cut_void(world: CutWorld) -> None:
    world.store.decide = lambda operation, key: (
        Fault.REFUSE if operation == "get_range" and key.startswith("tail/") else Fault.PASS
    )
    world.round()
    assert (world.numbers(), world.voids()) == ([], 1)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.REFUSE])
@pytest.mark.parametrize("key", ["cluster.json", "CUT", "cut/", "tail/"])
def test_a_store_that_fails_makes_cuts_void_and_is_caught_up_with(
    world: CutWorld, key: str, fault: Fault
) -> None:
    world.round()
    world.logs[TOPIC, 1].end = 20
    world.store.decide = lambda operation, asked: fault if asked.startswith(key) else Fault.PASS
    world.round()
    world.round()
    assert world.numbers() == [1]
    assert world.voids() == 2
    world.store.decide = lambda operation, asked: Fault.PASS
    world.round()
    assert (world.numbers(), world.complete()) == ([1, 2], [1, 2])
    assert len(world.keys("tail")) == 4, "nothing went up twice"
    world.check_kept()


def test_a_cut_after_attempts_that_could_not_write_the_first_follows_none(world: CutWorld) -> None:
    world.store.decide = once("put", Fault.FAIL, "CUT")
    for _ in range(2):
        world.round()
    assert (world.newest().cut, world.newest().follows) == (2, 0)


def test_an_answer_of_the_store_that_was_lost_leaves_the_cut_that_is_there(world: CutWorld) -> None:
    world.round()
    world.logs[TOPIC, 1].end = 20
    world.store.decide = once("put", Fault.LIE, "CUT")
    world.round()
    assert world.numbers() == [1, 2], "it was written, and read back"
    world.logs[TOPIC, 1].end = 30
    world.round()
    assert world.numbers() == [1, 2, 3]
    world.check_kept()


def test_a_keeper_that_lost_the_race_for_cut_has_a_void_cut(world: CutWorld) -> None:
    world.round()
    cuts = world.cuts_there()
    assert cuts is not None
    other = cuts.kept[-1]._replace(cut=2, key=cut_key(CutKey(2, UUID(int=99))))
    world.bucket.put("CUT", encode_cuts(cuts._replace(kept=(*cuts.kept, other))))
    world.logs[TOPIC, 1].end = 20
    world.round()
    assert world.numbers() == [1, 2]
    assert world.voids() == 1
    assert "another process" in world.manager.metrics.failing[Task.CUT, None]


def test_a_new_keeper_goes_on_from_the_newest_cut(world: CutWorld) -> None:
    world.round()
    tails = set(world.newest().tails)
    world.reboot()
    world.begin()
    world.round()
    assert world.numbers() == [1], "nothing is new"
    world.logs[TOPIC, 1].end = 20
    world.round()
    assert world.numbers() == [1, 2]
    assert tails < set(world.newest().tails)
    world.check_kept()


def _flipped(world: CutWorld, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Change a byte of the first so many answers with bytes of a tail."""
    left, read = [times], world.store.get_range

    def get_range(key: str, *args: Any, **more: Any) -> Any:
        data = bytes(read(key, *args, **more))
        if key.startswith("tail/") and left[0] > 0:
            left[0] -= 1
            return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
        return data

    monkeypatch.setattr(world.store, "get_range", get_range)


def test_a_tail_whose_bytes_changed_on_their_way_is_read_again(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.round()
    world.reboot()
    _flipped(world, monkeypatch, 2)
    world.begin()
    world.logs[TOPIC, 1].end = 20
    world.round()
    assert world.complete() == [1, 2]
    world.check_kept()


def test_records_of_a_lost_tail_are_awaited_and_not_said_to_be_saved(world: CutWorld) -> None:
    for one in world.cluster.fakes.values():
        one.heeds = False
    world.round()
    (lost,) = (key for key in world.keys("tail") if "-0000000002-" in key)
    saved = {place: one.saved for place, one in world.logs.items() if one.leader == 2}
    world.bucket.delete([lost])
    world.reboot()
    world.begin()
    world.logs[TOPIC, 1].end = 20
    world.round()
    assert world.complete() == [1], "written before the tail was lost"
    rows = {place: world.newest().topics[place[0]][place[1]] for place in saved}
    assert {(row.saved, row.saved_high, row.waits) for row in rows.values()} == {(0, 0, True)}
    for place in saved:
        world.commit_chain(place, world.logs[place].end)
    world.round()
    assert world.complete()[-1] == world.numbers()[-1]


def test_a_late_write_of_an_earlier_keeper_is_refused(world: CutWorld) -> None:
    world.round()
    before = world.bucket.get_tagged("CUT", max_size=1 << 20)
    world.reboot()
    world.begin()
    world.round()
    after = world.bucket.get_tagged("CUT", max_size=1 << 20)
    assert before.tag != after.tag
    assert decode_cuts(before.data).kept == decode_cuts(after.data).kept


def test_a_keeper_change_in_the_middle_names_what_was_uploaded(world: CutWorld) -> None:
    world.store.decide = once("put_stream", Fault.FAIL, "cut/")
    world.round()
    assert world.numbers() == []
    world.reboot()
    world.begin()
    world.round()
    assert world.complete() == [1]
    assert len(world.keys("tail")) == 3
    world.check_kept()


def test_a_process_that_is_not_the_keeper_any_more_writes_no_cut(world: CutWorld) -> None:
    world.round()
    other = CutWorld(world._tmp / "other", store=world.bucket, catalog=world.catalog, seed=2)
    other.logs = world.logs
    other.begin()
    world.logs[TOPIC, 0].end = 9
    world.round()
    assert world.numbers() == [1]
    assert world.manager.metrics.displaced is not None
    other.round()
    assert other.numbers() == [1, 2]


# -- CUT


@pytest.mark.parametrize("at", [0, 30, -5])
def test_a_damaged_cut_file_is_left_alone_and_named(world: CutWorld, at: int) -> None:
    world.round()
    data = bytearray(world.bucket.get("CUT", max_size=1 << 20))
    data[at] ^= 1
    world.reboot()
    world.begin()
    world.bucket.put("CUT", bytes(data))
    world.logs[TOPIC, 0].end = 9
    world.round()
    assert world.bucket.get("CUT", max_size=1 << 20) == data
    assert world.voids() == 1
    assert "CUT" in world.manager.metrics.failing[Task.CUT, None]


def test_a_cut_file_of_its_own_with_a_changed_byte_is_written_anew(world: CutWorld) -> None:
    world.round()
    data = bytearray(world.bucket.get("CUT", max_size=1 << 20))
    data[40] ^= 1
    world.bucket.put("CUT", bytes(data))
    world.logs[TOPIC, 0].end = 9
    world.round()
    assert world.numbers() == [1, 2]


def test_a_cut_file_of_later_software_is_left_alone(world: CutWorld) -> None:
    later = seal({"format": "firn-cuts", "format_version": 99, "kept": []})
    assert CHECKSUM.encode() in later
    world.bucket.put("CUT", later)
    world.round()
    assert world.bucket.get("CUT", max_size=1 << 20) == later
    assert world.voids() == 1


def test_a_cut_file_that_is_gone_begins_above_all_numbers_there(world: CutWorld) -> None:
    world.round()
    world.logs[TOPIC, 0].end = 9
    world.round()
    world.bucket.delete(["CUT"])
    world.reboot()
    world.begin()
    world.round()
    assert world.numbers() == [3]


def test_cuts_of_a_store_without_conditional_writes_are_taken_by_a_node_alone_only(tmp_path: Path) -> None:
    world = CutWorld(tmp_path)
    world.begin()
    keeper = world.manager.cuts
    assert keeper is not None
    assert keeper.may_cut
    world.manager.set_claim(None, is_conditional=False)
    assert not keeper.may_cut
    world.cluster.alive = {1}
    assert keeper.may_cut
    world.cluster.is_on = False
    assert not keeper.may_cut


def test_a_node_alone_takes_its_ends_in_one_turn(tmp_path: Path) -> None:
    world = CutWorld(tmp_path, brokers=(1,))
    world.logs = {(TOPIC, 0): Log(1, 5)}
    world.begin()
    world.round()
    assert world.cluster.fakes[1].asked == [(TAKE, 1, 0), (SAVE, 1, 0)]
    assert world.newest().is_exact
    world.check_kept()


# -- what goes


def sweep_late(world: CutWorld) -> None:
    """Two sweeps, a grace apart, and the first cut after them."""
    world.sweep()
    world.sweep()


def test_cuts_and_tails_go_a_grace_after_no_cut_needs_them(world: CutWorld) -> None:
    world.round()
    for end in range(10, 20):
        world.logs[TOPIC, 1].end = end
        world.round()
    world.commit_chain((TOPIC, 1), 19)
    world.clock.advance(3 * GRACE_MS)
    world.logs[TOPIC, 0].end = 9
    world.round()
    assert world.numbers() == [12], "the others are older than the grace"
    live = {ref.key for ref in world.newest().tails}
    assert len(world.keys("cut")) == 12
    world.do(world.manager.maintenance.sweep())
    assert len(world.keys("cut")) == 12, "whoever has read CUT before may still read them"
    world.clock.advance(GRACE_MS)
    world.do(world.manager.maintenance.sweep())
    assert len(world.keys("cut")) == 1
    assert set(world.keys("tail")) == live
    world.check_kept()


def test_nothing_that_a_kept_cut_names_is_swept(world: CutWorld) -> None:
    for end in range(10, 30, 5):
        world.logs[TOPIC, 1].end = end
        world.cluster.metadata_end += 5
        world.manager.maintenance.topics_changed()
        world.clock.advance(10_000)
        world.run()
        world.round()
        sweep_late(world)
        world.check_kept()
    assert world.numbers()


def test_tails_of_attempts_that_came_to_nothing_go_once_their_number_is_passed(world: CutWorld) -> None:
    world.cluster.harm = lambda broker_id, step: Harm.REFUSED if (broker_id, step) == (1, SAVE) else None
    world.round()
    stray = world.keys("tail")
    assert stray
    world.cluster.fakes[2].pending.clear()
    world.cluster.fakes[3].pending.clear()
    world.cluster.harm = lambda broker_id, step: None
    for end in (8, 9):
        sweep_late(world)
        assert set(stray) <= set(world.keys("tail")), "the next cut may still name them"
        world.logs[TOPIC, 0].end = end
        world.round()
    sweep_late(world)
    assert not set(stray) & set(world.keys("tail"))


def test_every_checkpoint_stays_that_a_kept_cut_needs_and_goes_a_grace_later(world: CutWorld) -> None:
    world.round()
    needed = world.newest().metadata.key
    for _ in range(4):
        world.cluster.metadata_end += 5
        world.manager.maintenance.topics_changed()
        world.clock.advance(10_000)
        world.run()
    assert needed in world.keys("metadata")
    assert len(world.keys("metadata")) == 3, "the newest two, and that one"
    world.round()
    world.clock.advance(2 * GRACE_MS)
    world.logs[TOPIC, 0].end = 9
    world.round()
    sweep_late(world)
    assert needed not in world.keys("metadata")
    world.check_kept()


def test_a_sweep_without_cuts_is_as_before(tmp_path: Path) -> None:
    world = CutWorld(tmp_path)
    world.cluster.is_on = False
    world.begin()
    for _ in range(4):
        world.cluster.metadata_end += 5
        world.manager.maintenance.topics_changed()
        world.clock.advance(10_000)
        world.run()
    assert len(world.keys("metadata")) == 2
    assert world.sweep() == 0


def test_a_document_that_cannot_be_read_keeps_the_tails_that_it_may_name(world: CutWorld) -> None:
    world.round()
    world.logs[TOPIC, 1].end = 20
    world.round()
    (first, _) = world.keys("cut")
    world.bucket.put(first, b"damaged")
    world.reboot()
    world.begin()
    world.logs[TOPIC, 1].end = 21
    world.round()
    tails = world.keys("tail")
    sweep_late(world)
    assert world.keys("tail") == tails
    assert Task.SWEEP in {task for task, _ in world.manager.metrics.failing}


def test_cuts_older_than_the_grace_leave_cut_where_nothing_happens(world: CutWorld) -> None:
    for end in range(10, 14):
        world.logs[TOPIC, 1].end = end
        world.round()
    world.clock.advance(2 * GRACE_MS)
    world.round()
    assert world.numbers() == [4]
    world.round()
    assert world.voids() == 0
