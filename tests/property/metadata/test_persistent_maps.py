"""The shared-structure maps against a plain dict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.metadata.persistent import REMOVED, PartitionMap, PersistentMap


class Colliding:
    """A key whose hash says little."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return -1 - self.number % 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and other.number == self.number


keys = st.one_of(st.integers(-50, 300), st.text(max_size=2), st.integers(0, 99).map(Colliding))
edits = st.lists(st.dictionaries(keys, st.one_of(st.integers(), st.just(REMOVED)), max_size=80), max_size=12)


@settings(max_examples=150, deadline=None)
@given(edits)
def test_a_persistent_map_is_a_dict_that_is_copied_at_every_change(history: list[dict[Any, Any]]) -> None:
    model: dict[Any, Any] = {}
    current: PersistentMap[Any, Any] = PersistentMap()
    versions = [(current, model)]
    for changes in history:
        model = {k: v for k, v in {**model, **changes}.items() if v is not REMOVED}
        current = current.with_changes(changes)
        versions.append((current, model))
    for version, expected in versions:
        assert dict(version) == expected
        assert len(version) == len(expected) == len(list(version))
        for key in expected:
            assert version[key] == expected[key]
            assert key in version
        assert version == PersistentMap(expected)
        assert version.get("not there") is None


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300), st.lists(st.tuples(st.integers(0, 400), st.integers()), max_size=30))
def test_a_partition_map_is_dense_and_in_order(size: int, changes: list[tuple[int, int]]) -> None:
    model = {i: -i for i in range(size)}
    current = PartitionMap.of(model)
    for key, value in changes:
        before = dict(current)
        if key <= len(model):
            model[key] = value
            changed = current.with_changes({key: value})
            assert dict(current) == before
            current = changed
        else:
            with pytest.raises(CorruptionError):
                current.with_changes({key: value})
        assert list(current.items()) == sorted(model.items())
        assert current.get(len(model)) is None
        assert -1 not in current
