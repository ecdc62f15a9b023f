"""Records that one broker saves with each cut, from its logs to tails in the bucket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import StorageError
from service.base.rate import RateLimit
from service.base.types import TopicIdPartition
from service.records.decode import iter_records
from service.remote.format.coverage import cover
from service.tiering.cuts import tail_writer
from service.tiering.cuts.saving import TailSettings
from service.tiering.cuts.saving_plan import Saved
from service.tiering.prefix_fence import NotNamed
from tests.support.compaction import Pair
from tests.unit.hot.cleanings import clean, put
from tests.unit.tiering.cut_keeper import CutKeeper, bytes_of, level_of
from tests.unit.tiering.world import Fault, World


def plain(tmp_path: Path, partitions: int = 1, **config: Any) -> tuple[World, CutKeeper]:
    """A world whose topic is not tiered."""
    world = World(tmp_path, partitions=partitions, remote_storage_enable=False, **config)
    world.run()
    return world, CutKeeper(world)


def tiered(tmp_path: Path, **config: Any) -> tuple[World, CutKeeper]:
    world = World(tmp_path, **config)
    world.run()
    return world, CutKeeper(world)


def test_each_cut_saves_what_came_since_as_the_log_has_it(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, partitions=3)
    ends = []
    for count in (1, 4, 2):
        for replica in world.replicas[:2]:
            replica.append(count, 5)
        saved = keeper.cut_now()
        ends.append(world.replicas[0].high_watermark)
        assert keeper.standing(saved, world.replicas[1]) == (Saved(ends[-1], 0, 0), False, True)
    sections = [span.section for span in keeper.spans(world.replicas[0])]
    assert [(one.first_offset, one.end_offset) for one in sections] == [(0, 1), (1, 5), (5, 7)]
    assert ends == [1, 5, 7]
    for replica in world.replicas[:2]:
        assert keeper.read(replica, 0, 7) == bytes_of(replica)
    assert keeper.spans(world.replicas[2]) == []
    assert keeper.cut_now().tails == (), "nothing new"


def test_nothing_above_the_end_is_saved(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(3, 5)
    replica.append(2, 5)
    keeper.cut_now(ends={replica: 3})
    (span,) = keeper.spans(replica)
    assert (span.section.first_offset, span.section.end_offset, span.section.record_count) == (0, 3, 3)


def test_a_tiered_partition_is_saved_from_where_its_chain_ends(tmp_path: Path) -> None:
    world, keeper = tiered(tmp_path)
    replica = world.replicas[0]
    world.fill(3)
    world.run()
    assert replica.remote is not None
    chain_end, end = replica.remote.end_offset, replica.high_watermark
    assert 0 < chain_end < end
    saved = keeper.cut_now()
    assert keeper.read(replica, chain_end, end) == bytes_of(replica, chain_end)
    assert keeper.standing(saved, replica).saved.low == end
    world.fill(2)
    world.run()
    saved = keeper.cut_now()
    # The chain has grown beyond what the tail had.
    assert [span.section.first_offset for span in keeper.spans(replica)] == [
        chain_end,
        replica.remote.end_offset,
    ]


def test_tails_of_a_void_attempt_are_reported_again_and_go_up_once(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(2, 5)
    first = keeper.save()
    assert len(first.tails) == 1
    replica.append(2, 5)
    second = keeper.save()
    assert second.tails[0] == first.tails[0]
    assert len(second.tails) == 2
    assert keeper.save().tails == second.tails, "nothing new"
    keeper.name(second)
    assert keeper.save().tails == (), "they are named"
    assert keeper.read(replica, 0, 4) == bytes_of(replica)


def test_a_cut_by_an_earlier_attempt_names_only_what_that_had(tmp_path: Path) -> None:
    """Its answer came late to the keeper, which had begun another attempt."""
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(2, 5)
    first, attempt, taken = keeper.save(), keeper.attempt, keeper.taken
    replica.append(2, 5)
    second = keeper.save()
    keeper.attempt, keeper.taken = attempt, taken
    keeper.name(first)
    again = keeper.save()
    assert again.tails == second.tails[1:]


def test_a_tail_that_the_sweeper_may_have_taken_is_not_reported_but_saved_anew(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(2, 5)
    lost = keeper.save()
    keeper.cut += 1  # a cut in which this broker had no part
    assert keeper.save().tails == lost.tails, "its number is not below the newest"
    keeper.cut += 1
    anew = keeper.save()
    assert len(anew.tails) == 1
    assert anew.tails != lost.tails
    keeper.name(anew)
    assert keeper.read(replica, 0, 2) == bytes_of(replica)


def test_every_so_many_cuts_all_behind_the_chain_is_saved_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tiering.cuts.saving.HIGH_EVERY", 3)
    world, keeper = plain(tmp_path, partitions=2)
    busy, idle = world.replicas
    idle.append(1, 5)
    levels = []
    for _ in range(7):
        busy.append(1, 5)
        before = len(keeper.named)
        keeper.cut_now()
        levels.append([level_of(ref) for ref in keeper.named[before:]])
    assert levels == [[0], [0], [1], [0], [0], [1], [0]]
    high = [(s.section.first_offset, s.section.end_offset) for s in keeper.spans(busy) if s.level]
    assert high == [(0, 3), (3, 6)]
    assert [s.level for s in keeper.spans(idle)] == [0, 1], "an idle one once"
    assert keeper.read(busy, 0, 7) == bytes_of(busy)


def test_bytes_beyond_one_tail_go_with_the_next_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_writer, "MAX_OBJECT_BYTES", 1500)
    world, keeper = plain(tmp_path, partitions=3)
    for replica in world.replicas:
        for _ in range(6):
            replica.append(1, 5)
    lows = []
    for _ in range(4):
        saved = keeper.cut_now()
        lows.append([keeper.standing(saved, one).saved.low for one in world.replicas])
        world.clock.advance(1000)
    assert all(ref.size < 1500 + 1000 for ref in keeper.named)
    assert lows[-1] == [6, 6, 6]
    assert lows[0] != [6, 6, 6]
    for replica in world.replicas:
        assert keeper.read(replica, 0, 6) == bytes_of(replica)


def test_one_large_batch_goes_up_even_if_it_is_larger_than_a_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_writer, "MAX_OBJECT_BYTES", 10)
    world, keeper = plain(tmp_path, partitions=2)
    for replica in world.replicas:
        replica.append(2, 5)
    saved = [keeper.cut_now() for _ in range(2)]
    assert [keeper.standing(saved[1], one).saved.low for one in world.replicas] == [2, 2]
    assert len(keeper.named) == 2


def test_a_large_log_that_is_not_tiered_is_left_out_and_named(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, partitions=2)
    world.manager.tails._settings = lambda: TailSettings(base_max_bytes=1000)
    large, small = world.replicas
    for _ in range(20):
        large.append(1, 5)
    small.append(1, 5)
    saved = keeper.cut_now()
    assert keeper.standing(saved, large) == (Saved(0, 0, -1), False, False)
    assert keeper.standing(saved, small) == (Saved(1, 0, 0), False, True)
    assert "firn.tail.base.max.bytes is 1000" in world.manager.metrics.cuts.left_out[large.tip]
    assert world.manager.metrics.cuts.lag_bytes == 0


def test_topics_that_do_not_want_it_are_not_saved_but_internal_ones_are(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, tail_enable=False)
    world.manager.tails._settings = lambda: TailSettings(base_max_bytes=0)
    (one,) = world.replicas
    other = world.add(TopicIdPartition(UUID(int=8), "__consumer_offsets", 3))
    for replica in (one, other):
        replica.append(1, 5)
    saved = keeper.save()
    assert keeper.standing(saved, one) == (Saved(0, 0, -1), False, False)
    assert keeper.standing(saved, other) == (Saved(1, 0, 0), False, True)
    assert world.manager.metrics.cuts.left_out == {}


# -- waits


def busy(tmp_path: Path) -> tuple[World, CutKeeper]:
    """A segment takes five seconds to fill, and is copied at once."""
    world, keeper = tiered(tmp_path)
    world.fill(1)
    world.run()
    keeper.cut_now()
    for _ in range(4):
        world.clock.advance(1000)
        world.replicas[0].append(1, 5)
    return world, keeper


def test_a_partition_whose_segment_comes_soon_waits_for_it(tmp_path: Path) -> None:
    world, keeper = busy(tmp_path)
    named = len(keeper.named)
    saved = keeper.cut_now()
    assert keeper.standing(saved, world.replicas[0]).waits
    assert len(keeper.named) == named
    assert world.manager.metrics.cuts.lag_bytes > 0


def test_no_partition_waits_longer_than_the_setting_says(tmp_path: Path) -> None:
    world, keeper = busy(tmp_path)
    replica, standings = world.replicas[0], []
    for _ in range(32):
        world.clock.advance(1000)
        replica.append(1, 5)  # fills segments, which nobody copies
        standing = keeper.standing(keeper.cut_now(), replica)
        standings.append((standing.waits, standing.saved.low == replica.high_watermark))
    assert standings[:30] == [(True, False)] * 30
    assert (False, True) in standings


def test_a_partition_waits_for_nothing_where_tiering_is_off_or_stands_still(tmp_path: Path) -> None:
    world, keeper = busy(tmp_path)
    replica = world.replicas[0]
    replica.log.config = replace(replica.log.config, remote_log_copy_disable=True)
    assert keeper.standing(keeper.save(), replica).waits is False
    replica.log.config = replace(replica.log.config, remote_log_copy_disable=False)
    replica.append(1, 5)
    world.manager.metrics.reasons[replica.tip] = "its HEAD is damaged"
    assert keeper.standing(keeper.save(), replica).waits is False


# -- new leaders


def test_a_new_leader_goes_on_where_the_newest_cut_says_that_tails_end(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(3, 5)
    keeper.cut_now()
    world.reboot()
    world.run()
    replica = world.replicas[0]
    replica.leader_epoch = 4
    replica.append(2, 5)
    saved = keeper.cut_now()
    sections = [span.section for span in keeper.spans(replica)]
    assert [(one.leader_epoch, one.first_offset, one.end_offset) for one in sections] == [
        (0, 0, 3),
        (4, 3, 5),
    ]
    assert keeper.standing(saved, replica).saved == Saved(5, 0, 4)
    assert keeper.read(replica, 0, 5) == bytes_of(replica)


def test_one_document_serves_all_partitions_of_a_broker(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, partitions=3)
    for replica in world.replicas:
        replica.append(3, 5)
    keeper.cut_now()
    world.reboot()
    world.run()
    gets: list[str] = []

    def noted(operation: str, key: str) -> Fault:
        if operation == "get":
            gets.append(key)
        return Fault.PASS

    world.store.decide = noted
    for replica in world.replicas:
        replica.leader_epoch = 4
    saved = keeper.cut_now()
    assert saved.tails == ()
    assert len([key for key in gets if key.startswith("cut/")]) == 1
    keeper.cut_now()
    assert len([key for key in gets if key.startswith("cut/")]) == 1


def test_an_unclean_leader_with_other_bytes_saves_them_from_the_chains_end(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(3, 5)
    replica.append(3, 5)
    keeper.cut_now()
    world.reboot()
    world.run()
    replica = world.replicas[0]
    replica.log.truncation.truncate_to(3)
    replica.leader_epoch = 6
    replica.append(2, 6)
    replica.append(4, 7)
    keeper.cut_now()
    assert keeper.read(replica, 0, 9) == bytes_of(replica)
    assert [s.section.first_offset for s in keeper.spans(replica)] == [0, 0]


def test_a_damaged_document_costs_bytes_only(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(3, 5)
    keeper.cut_now()
    world.bucket.put("CUT", b"{}")
    world.reboot()
    world.run()
    replica = world.replicas[0]
    replica.leader_epoch = 4
    replica.append(1, 5)
    keeper.cut_now()
    assert [s.section.first_offset for s in keeper.spans(replica)] == [0, 0]
    assert keeper.read(replica, 0, 4) == bytes_of(replica)


# -- beside retention, compaction, and failures


def test_retention_that_overtakes_what_is_saved_makes_a_section_begin_later(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(1, 5)
    keeper.cut_now()
    for _ in range(30):
        replica.append(1, 5)
    replica.log.deletion.move_log_start(20)
    replica.log.deletion.delete_below_start()
    start = replica.log.local_log_start_offset
    assert start > 1
    keeper.cut_now()
    assert keeper.read(replica, start, 31) == bytes_of(replica)


def test_a_file_that_is_gone_leaves_out_its_partition_alone(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, partitions=2)
    broken, other = world.replicas
    for _ in range(30):
        broken.append(1, 5)
    other.append(1, 5)
    first = broken.log.state.segments.all[0]
    first.let_files_go()
    path = first.log.path
    moved = path.rename(path.with_suffix(".away"))
    saved = keeper.cut_now()
    assert keeper.standing(saved, broken).saved.low == 0
    assert keeper.standing(saved, other).saved.low == 1
    assert broken.tip in world.manager.metrics.cuts.left_out
    moved.rename(path)
    saved = keeper.cut_now()
    assert keeper.standing(saved, broken).saved.low == 30
    assert world.manager.metrics.cuts.left_out == {}


def test_damaged_bytes_never_go_up(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, partitions=2)
    broken, other = world.replicas
    for replica in world.replicas:
        replica.append(3, 5)
    path = broken.log.state.segments.active.log.path
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    saved = keeper.cut_now()
    assert keeper.spans(broken) == []
    assert keeper.standing(saved, broken).saved.low == 0
    assert keeper.standing(saved, other).saved.low == 3


def test_bytes_that_change_between_the_two_reads_end_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(3, 5)
    path = replica.log.state.segments.active.log.path
    whole = path.read_bytes()
    laid_out = tail_writer.lay_out

    def then_changed(*args: Any) -> Any:
        found = laid_out(*args)
        path.write_bytes(whole[:-1] + bytes((whole[-1] ^ 1,)))
        return found

    monkeypatch.setattr("service.tiering.cuts.saving.lay_out", then_changed)
    with pytest.raises(StorageError, match="changed while they were read"):
        keeper.save()
    assert not list(world.bucket.list("tail"))
    path.write_bytes(whole)
    monkeypatch.undo()
    keeper.cut_now()
    assert keeper.read(replica, 0, 3) == bytes_of(replica)


def test_a_partition_that_is_led_by_another_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, keeper = plain(tmp_path, partitions=2)
    lost, other = world.replicas
    for replica in world.replicas:
        replica.append(3, 5)
    laid_out = tail_writer.lay_out

    def then_deposed(*args: Any) -> Any:
        lost.is_leader = False
        return laid_out(*args)

    monkeypatch.setattr("service.tiering.cuts.saving.lay_out", then_deposed)
    saved = keeper.cut_now()
    assert keeper.spans(lost) == []
    assert keeper.standing(saved, lost).saved.low == 0
    assert keeper.read(other, 0, 3) == bytes_of(other)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.REFUSE, Fault.LIE])
def test_a_store_that_fails_costs_the_attempt_and_no_record(tmp_path: Path, fault: Fault) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    replica.append(3, 5)
    world.store.decide = lambda operation, key: fault if key.startswith("tail/") else Fault.PASS
    with pytest.raises(StorageError):
        keeper.save()
    world.store.decide = lambda *_: Fault.PASS
    saved = keeper.cut_now()
    assert keeper.standing(saved, replica).saved.low == 3
    assert keeper.read(replica, 0, 3) == bytes_of(replica)


def test_a_broker_that_may_not_write_saves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, remote_storage_enable=False)
    keeper = CutKeeper(world)
    world.replicas[0].append(3, 5)
    with pytest.raises(NotNamed):
        keeper.save()
    assert not list(world.bucket.list("tail"))


def test_tails_keep_within_the_quota_of_copies(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    world.manager.tails._rate._limit = lambda: RateLimit(100, 10)
    for _ in range(30):
        replica.append(1, 5)
    size = replica.log.size
    assert size > 3000
    keeper.cut_now()
    first = sum(ref.size for ref in keeper.named)
    assert first < 2000
    keeper.cut_now()  # of which the first batch goes up whatever its size is
    first = sum(ref.size for ref in keeper.named)
    saved = keeper.cut_now()
    assert sum(ref.size for ref in keeper.named) == first, "the window is used up"
    for _ in range(10):
        world.clock.advance(10_000)
        saved = keeper.cut_now()
    assert keeper.standing(saved, replica).saved.low == 30
    assert world.manager._context.copy_rate._limit().bytes_per_s > 100


def test_level_one_leaves_room_for_records_that_are_nowhere_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tiering.cuts.saving.HIGH_EVERY", 2)
    world, keeper = plain(tmp_path, partitions=4)
    large, *small = world.replicas
    for _ in range(200):
        large.append(1, 5)
    keeper.cut_now()
    world.manager.tails._rate._limit = lambda: RateLimit(100, 10)
    for _ in range(12):
        world.clock.advance(10_000)
        for replica in small:
            replica.append(1, 5)
        saved = keeper.cut_now()
        assert [keeper.standing(saved, one).saved.low for one in small] == [small[0].high_watermark] * 3
    assert 0 < keeper.standing(saved, large).saved.high < 200, "still under way"


def test_a_compacted_log_is_saved_anew_when_tails_have_far_more_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tiering.cuts.saving.HIGH_EVERY", 2)
    monkeypatch.setattr("service.tiering.cuts.saved_progress._LEAST_BASE_BYTES", 500)
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    for _ in range(12):
        replica.append(5, 5)
        keeper.cut_now()
    replica.log.deletion.move_log_start(50)
    replica.log.deletion.delete_below_start()
    start = replica.log.local_log_start_offset
    assert start > 30
    for _ in range(2):
        replica.append(1, 5)
        keeper.cut_now()
    last = [s.section for s in keeper.spans(replica) if s.level][-1]
    assert last.first_offset == start
    assert keeper.read(replica, start, 62) == bytes_of(replica)


def test_an_internal_topic_that_is_compacted_between_cuts_comes_back_with_its_newest_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tiering.cuts.saving.HIGH_EVERY", 4)
    world, keeper = plain(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    replica = world.add(TopicIdPartition(UUID(int=8), "__consumer_offsets", 0))
    newest: dict[bytes | None, bytes | None] = {}
    sizes = []
    for turn in range(13):
        for number in range(5):
            pair = Pair(b"group %d" % (turn * number % 7), b"%d at %d" % (number, turn) * 9)
            put(replica.log, [pair])
            newest[pair.key] = pair.value
        if turn % 2:
            clean(replica.log)
            sizes.append(replica.log.size)
        keeper.cut_now()
        end = replica.high_watermark
        kept = {one.key: one.value for one in iter_records(keeper.read(replica, 0, end))}
        assert kept == newest
    assert sizes[-1] < 13 * sizes[0] / 2, "compaction has taken records away"
    sections = [span.section for span in keeper.spans(replica)]
    assert any(one.record_count < one.end_offset - one.first_offset for one in sections)


def test_however_long_it_goes_on_few_tails_have_some_of_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that grows slowly, and whose segment is not sealed: 135 tails of level 1 a day, each kept alive."""
    monkeypatch.setattr("service.tiering.cuts.saving.HIGH_EVERY", 2)
    monkeypatch.setattr("service.tiering.cuts.saved_progress.FEW_HIGH", 5)
    world, keeper = plain(tmp_path, segment_bytes=1 << 20)
    replica = world.replicas[0]
    for turn in range(60):
        replica.append(1, 5)
        if turn == 30:
            replica.leader_epoch = 4
        keeper.cut_now()
        covered = cover(keeper.spans(replica), 0, replica.high_watermark)
        live = {piece.span.tail for piece in covered.pieces}
        assert len(live) <= 7
        keeper.named = [ref for ref in keeper.named if ref.key in live]
    assert keeper.read(replica, 0, 60) == bytes_of(replica)
