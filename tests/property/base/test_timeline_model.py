"""Timelines beside snapshots of plain dictionaries, one after every record."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from service.base.errors import InvariantError
from service.base.timeline import Journal, Timeline

KEYS = st.integers(0, 5)


class TimelinesBesideSnapshots(RuleBasedStateMachine):
    """`snapshots[n]` is what the two dictionaries were before the record at offset ``start + n``."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.timelines: tuple[Timeline[int, str], ...] = (Timeline(self.journal), Timeline(self.journal))
        self.newest: tuple[dict[int, str], ...] = ({}, {})
        self.snapshots: list[tuple[dict[int, str], ...]] = [({}, {})]
        self.number = 0

    def _copy(self) -> tuple[dict[int, str], ...]:
        return tuple(dict(each) for each in self.newest)

    @rule(
        changes=st.lists(
            st.tuples(st.integers(0, 1), KEYS, st.sampled_from(["set", "set", "pop", "same"])), max_size=4
        )
    )
    def replay(self, changes: list[tuple[int, int, str]]) -> None:
        """One record, which may change one key several times, or nothing."""
        offset = len(self.snapshots) - 1
        self.journal.at(offset)
        for which, key, action in changes:
            timeline, plain = self.timelines[which], self.newest[which]
            if action == "set":
                self.number += 1
                timeline[key] = plain[key] = str(self.number)
            elif action == "same" and key in plain:
                timeline[key] = plain[key]
            else:
                assert timeline.pop(key, None) == plain.pop(key, None)
        self.snapshots.append(self._copy())

    @rule(back=st.integers(0, 1 << 30))
    def commit(self, back: int) -> None:
        offset = back % len(self.snapshots)
        self.journal.commit(offset)

    @rule(back=st.integers(0, 1 << 30))
    def revert(self, back: int) -> None:
        offset = back % len(self.snapshots)
        if offset < self.journal.committed_offset:
            with pytest.raises(InvariantError):
                self.journal.revert_to(offset)
            return
        self.journal.revert_to(offset)
        del self.snapshots[offset + 1 :]
        self.newest = tuple(dict(each) for each in self.snapshots[offset])

    @invariant()
    def newest_is_the_newest(self) -> None:
        for timeline, plain in zip(self.timelines, self.newest, strict=True):
            assert dict(timeline.items()) == plain
            assert len(timeline) == len(plain)
            assert all(timeline.get(key) == plain.get(key) for key in range(6))
            assert all((key in timeline) == (key in plain) for key in range(6))

    @invariant()
    def the_committed_one_is_the_snapshot_at_the_committed_offset(self) -> None:
        then = self.snapshots[self.journal.committed_offset]
        for timeline, plain in zip(self.timelines, then, strict=True):
            assert dict(timeline.committed_items()) == plain
            assert all(timeline.committed(key) == plain.get(key) for key in range(6))

    @invariant()
    def what_is_committed_needs_no_memory(self) -> None:
        if self.journal.committed_offset == len(self.snapshots) - 1:
            assert len(self.journal) == 0
            assert all(timeline._oldest is None for timeline in self.timelines)


TestTimelines = TimelinesBesideSnapshots.TestCase


def test_a_timeline_forgets_below_the_committed_offset() -> None:
    """A load, whose records are committed before they are replayed."""
    journal = Journal()
    journal.commit(1000)
    timeline: Timeline[int, int] = Timeline(journal)
    for offset in range(1000):
        journal.at(offset)
        timeline[offset % 7] = offset
    assert len(journal) == 0
    journal.at(1000)
    timeline[0] = 1
    assert len(journal) == 1
    assert timeline.committed(0) == 994


def test_a_key_changed_many_times_is_committed_and_reverted_in_pieces() -> None:
    journal = Journal()
    timeline: Timeline[str, int] = Timeline(journal)
    for offset in range(10_000):
        journal.at(offset)
        timeline["a"] = offset
    for offset in range(0, 5000, 7):
        journal.commit(offset)
        assert timeline.committed("a", -1) == offset - 1
    journal.revert_to(7000)
    assert timeline["a"] == 6999
    journal.commit(7000)
    assert timeline.committed("a") == 6999
