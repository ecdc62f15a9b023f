"""Check of the disasters bench: what is not of one moment is found, and nothing else."""

from __future__ import annotations

from bench.disaster_checks import Content, Record, committed_in, torn
from service.groups.records import OffsetKey, OffsetValue, encode_offset, offset_tombstone


def chains(*parts: list[tuple[int, bytes]]) -> Content:
    return Content([[Record(*one) for one in part] for part in parts])


WHOLE = chains([(0, b"0:0"), (1, b"1:0"), (2, b"0:2")], [(0, b"0:1"), (1, b"2:0")])
ANSWERS = chains([(0, b"0@0=0:0")], [])


def test_one_moment_is_not_complained_of() -> None:
    assert torn(WHOLE, ANSWERS, 3, [(0, 1), (1, 0)]) == []


def test_a_chain_with_a_hole_is_torn() -> None:
    assert torn(WHOLE.below([3, 0]), ANSWERS, 3, []) == ["chain 0 lacks 1, and has what follows from it"]


def test_an_echo_without_its_cause_is_torn() -> None:
    found = torn(WHOLE.below([0, 0]), ANSWERS, 3, [])
    assert found == ["echo of 0@0 is there, and its cause is not"]


def test_an_echo_of_what_others_have_at_that_offset_is_torn() -> None:
    other = chains([(0, b"1:0")], [])
    assert torn(other, ANSWERS, 3, []) == ["echo of 0@0 is there, and its cause is not"]


def test_a_commit_before_its_echo_is_torn_unless_the_record_needs_none() -> None:
    assert torn(WHOLE, ANSWERS, 3, [(1, 2)]) == ["chains-1 is committed beyond 0, which has no echo"]
    answered = chains([(0, b"0@0=0:0")], [(0, b"1@0=0:1")])
    assert torn(WHOLE, answered, 3, [(1, 2)]) == []


def test_a_commit_beyond_the_last_record_is_torn() -> None:
    answered = chains([(0, b"0@0=0:0")], [(0, b"1@0=0:1")])
    found = torn(WHOLE, answered, 3, [(1, 3)])
    assert found == ["chains-1 is committed to 3, beyond its last record"]


def test_commits_are_those_of_the_group_below_the_ends() -> None:
    def committed(offset: int, group: str, partition: int, value: int | None) -> Record:
        key = OffsetKey(group, "chains", partition)
        record = offset_tombstone(key) if value is None else encode_offset(key, OffsetValue(value, -1, "", 0))
        return Record(offset, record.value or b"", record.key or b"")

    offsets = Content(
        [
            [committed(0, "echo", 0, 5), committed(1, "other", 0, 9), committed(2, "echo", 0, 7)],
            [committed(0, "echo", 1, 3), committed(1, "echo", 1, None)],
        ]
    )
    assert committed_in(offsets, "echo") == [(0, 7)]
    assert committed_in(offsets.below([2, 1]), "echo") == [(0, 5), (1, 3)]
