"""Filters that Spark pushes down, turned into what planning can use: partitions, offsets, times. [P]

Conditions on `topic` and `partition` are decided once per partition, whatever they are. Comparisons of
`offset` and `timestamp` become ranges, which prune segments and blocks and then choose the rows: those are
exact. What is neither is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from service.remote.keys import MAX_OFFSET
from service.spark.schema import NEVER_NULL

MIN_TIMESTAMP: Final = -(1 << 63)
END_OF_TIME: Final = 1 << 63
END_OF_OFFSETS: Final = MAX_OFFSET + 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Condition(NamedTuple):
    """One filter: `operator` is the name of pyspark's filter class, ``EqualTo`` and so on."""

    column: str
    operator: str
    value: Any = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted of the log. Ranges are half open; timestamps are milliseconds."""

    partitions: tuple[Condition, ...] = ()
    begin_offset: int = 0
    end_offset: int = END_OF_OFFSETS
    begin_timestamp: int = MIN_TIMESTAMP
    end_timestamp: int = END_OF_TIME

    @property
    def by_time(self) -> bool:
        """Whether rows are chosen by their timestamp at all."""
        return self.begin_timestamp > MIN_TIMESTAMP or self.end_timestamp < END_OF_TIME

    def takes_partition(self, topic: str, partition: int) -> bool:
        """Whether any row of this partition can pass."""
        return all(
            _holds(condition, topic if condition.column == "topic" else partition)
            for condition in self.partitions
        )

    def takes_times(self, min_timestamp: int, max_timestamp: int) -> bool:
        """Whether records between these can pass; a minimum of -1 is one that is not known."""
        if max_timestamp < self.begin_timestamp:
            return False
        return min_timestamp < 0 or min_timestamp < self.end_timestamp

    def takes_all_times(self, min_timestamp: int, max_timestamp: int) -> bool:
        """Whether records between these pass, whatever they are; a minimum of -1 is one that is not known."""
        has_begin = self.begin_timestamp > MIN_TIMESTAMP
        if has_begin and (min_timestamp < 0 or min_timestamp < self.begin_timestamp):
            return False
        return max_timestamp < self.end_timestamp


def push(conditions: Iterable[Condition]) -> tuple[Selection, list[bool]]:
    """What is left to read, and for each condition whether it is wholly taken care of.

    >>> push([Condition("offset", "GreaterThan", 41)])[0].begin_offset
    42
    """
    selection, done = Selection(), []
    for condition in conditions:
        narrowed = _narrow(selection, condition)
        done.append(narrowed is not None)
        selection = selection if narrowed is None else narrowed
    return selection, done


def _narrow(selection: Selection, condition: Condition) -> Selection | None:
    """`selection` and the condition, None when the condition is Spark's to evaluate."""
    if condition.operator == "IsNotNull" and not condition.negated:
        return selection if condition.column in NEVER_NULL else None
    if condition.column in ("topic", "partition"):
        if not _decidable(condition):
            return None
        return replace(selection, partitions=(*selection.partitions, condition))
    if condition.negated:
        return None
    if condition.column == "offset" and _is_int(condition.value):
        span = _integers(condition.operator, condition.value)
        if span is None:
            return None
        begin, end = max(selection.begin_offset, span[0]), min(selection.end_offset, span[1])
        return replace(selection, begin_offset=begin, end_offset=max(begin, end))
    if condition.column == "timestamp" and isinstance(condition.value, datetime):
        times = _milliseconds(condition.operator, condition.value)
        if times is None:
            return None
        begin, end = max(selection.begin_timestamp, times[0]), min(selection.end_timestamp, times[1])
        return replace(selection, begin_timestamp=begin, end_timestamp=max(begin, end))
    return None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _decidable(condition: Condition) -> bool:
    values = condition.value if condition.operator == "In" else (condition.value,)
    kind = str if condition.column == "topic" else int
    operators = _TESTS if kind is str else _TESTS.keys() - _TEXT_TESTS
    return condition.operator in operators and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )


_TESTS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": lambda found, value: found == value,
    "EqualNullSafe": lambda found, value: found == value,
    "GreaterThan": lambda found, value: found > value,
    "GreaterThanOrEqual": lambda found, value: found >= value,
    "LessThan": lambda found, value: found < value,
    "LessThanOrEqual": lambda found, value: found <= value,
    "In": lambda found, value: found in value,
    "StringStartsWith": lambda found, value: found.startswith(value),
    "StringEndsWith": lambda found, value: found.endswith(value),
    "StringContains": lambda found, value: value in found,
}
_TEXT_TESTS: Final = frozenset(("StringStartsWith", "StringEndsWith", "StringContains"))


def _holds(condition: Condition, found: str | int) -> bool:
    return _TESTS[condition.operator](found, condition.value) != condition.negated


def _integers(operator: str, value: int) -> tuple[int, int] | None:
    """The half-open range of integers that pass."""
    match operator:
        case "EqualTo" | "EqualNullSafe":
            return value, value + 1
        case "GreaterThan":
            return value + 1, END_OF_TIME
        case "GreaterThanOrEqual":
            return value, END_OF_TIME
        case "LessThan":
            return MIN_TIMESTAMP, value
        case "LessThanOrEqual":
            return MIN_TIMESTAMP, value + 1
    return None


def _milliseconds(operator: str, value: datetime) -> tuple[int, int] | None:
    """The half-open range of milliseconds that pass, given a time in microseconds."""
    if value.tzinfo is None:
        return None
    span = _integers(operator, (value - _EPOCH) // _MICROSECOND)
    if span is None:
        return None
    # Whole milliseconds at or after a time in microseconds: rounded up, on either side of the range.
    begin = MIN_TIMESTAMP if span[0] == MIN_TIMESTAMP else -(-span[0] // 1000)
    end = END_OF_TIME if span[1] == END_OF_TIME else -(-span[1] // 1000)
    return begin, end
