"""Reads kio's entities after a check of every length in their bytes. [P]

kio's native reader allocates as many elements as an array's length says, before it reads the first; a length
of two billion ends the process, which nothing can catch. So `read_entity` walks the bytes first, by the
fields of the entity's dataclass (compact types and tagged fields, KIP-482), and compares each length with the
bytes that are left for it.

Most entities have no array, and are read at once: kio checks the lengths of strings itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from service.base.errors import CorruptionError
from service.base.types import Buffer

T = TypeVar("T")
_Skip = Callable[[Buffer, int, int], int]
"""(data, position, end) -> end of the field; `CorruptionError` beyond `end`."""

_SIZES: Final = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip
_LENGTHS: Final = frozenset({"string", "bytes", "records"})
_MAX_VARINT_SHIFT: Final = 28


class _Plan(NamedTuple):
    """Plan for a walk over an entity's bytes: its fields in order, then the tagged ones."""

    steps: tuple[int | _Skip, ...]
    """An int: a field of so many bytes."""
    tagged: dict[int, int | _Skip]
    least_bytes: int
    has_arrays: bool


def read_entity(entity_type: type[T], data: Buffer, what: str) -> tuple[T, int]:
    """Read the entity at the start of `data`, and return it with its size; errors begin with `what`.

    Raises `CorruptionError` where the bytes are not such an entity.
    """
    plan = _plan(entity_type)
    reader: Any = entity_reader(entity_type)
    try:
        if plan.has_arrays:
            _walk(plan, data, 0, len(data))
        entity, consumed = reader(data, 0)
    except CorruptionError as e:
        raise CorruptionError(f"{what}: {e}") from e
    except (SerialError, ValueError, TypeError, KeyError) as e:  # an unknown tag is a KeyError
        raise CorruptionError(f"{what}: {type(e).__name__}: {e}") from e
    return entity, consumed


_plans: Final[dict[type[Any], _Plan]] = {}


def _plan(entity_type: type[Any]) -> _Plan:
    plan = _plans.get(entity_type)
    if plan is None:
        plan = _plans[entity_type] = _make_plan(entity_type)
    return plan


def _make_plan(entity_type: type[Any]) -> _Plan:
    if not entity_type.__flexible__:
        raise TypeError(f"{entity_type.__name__} is not of a flexible version")
    hints = get_type_hints(entity_type)
    steps: list[int | _Skip] = []
    tagged: dict[int, int | _Skip] = {}
    least_bytes, has_arrays = 1, False
    for one in fields(entity_type):
        step, field_bytes, is_array = _step(one, hints[one.name])
        has_arrays |= is_array
        if (tag := one.metadata.get("tag")) is not None:
            tagged[tag] = step
            continue
        least_bytes += field_bytes
        if isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    return _Plan(tuple(steps), tagged, least_bytes, has_arrays)


def _step(one: Field[Any], hint: Any) -> tuple[int | _Skip, int, bool]:
    """Return a field's step, its least number of bytes, and whether it has an array."""
    kafka_type: Any = one.metadata.get("kafka_type")
    element = _element(hint)
    if element is None and kafka_type is None:
        plan = _plan(_sole(hint))
        return _entity_skip(plan), plan.least_bytes, plan.has_arrays
    if element is None:
        if kafka_type in _LENGTHS:
            return _skip_string, 1, False
        return _SIZES[kafka_type], _SIZES[kafka_type], False
    if kafka_type is None:
        plan = _plan(element)
        return _array_skip(plan.least_bytes, _entity_skip(plan)), 1, True
    if kafka_type in _LENGTHS:
        return _array_skip(1, _skip_string), 1, True
    return _array_skip(_SIZES[kafka_type], None), 1, True


def _element(hint: Any) -> Any | None:
    """Return the type of an array's elements; None where there is no array."""
    for one in (hint, *get_args(hint)):
        if get_origin(one) is tuple:
            return get_args(one)[0]
    return None


def _sole(hint: Any) -> type[Any]:
    found: type[Any] = next((one for one in get_args(hint) if one is not type(None)), hint)
    return found


def _entity_skip(plan: _Plan) -> _Skip:
    return lambda data, position, end: _walk(plan, data, position, end)


def _array_skip(least_bytes: int, skip: _Skip | None) -> _Skip:
    """Return a skip of elements with at least so many bytes each; without `skip`, with exactly so many."""

    def skip_array(data: Buffer, position: int, end: int) -> int:
        count, position = _length(data, position, end)
        if count < 1:  # null, or empty
            return position
        count -= 1
        if count * least_bytes > end - position:
            _corrupt(f"an array of {count} elements in {end - position} bytes")
        if skip is None:
            return position + count * least_bytes
        for _ in range(count):
            position = skip(data, position, end)
        return position

    return skip_array


def _skip_string(data: Buffer, position: int, end: int) -> int:
    length, position = _length(data, position, end)
    position += max(length - 1, 0)
    if position > end:
        _corrupt(f"a string of {length - 1} bytes ends {position - end} bytes too late")
    return position


def _walk(plan: _Plan, data: Buffer, position: int, end: int) -> int:
    """Return the end of the entity that begins at `position`."""
    for step in plan.steps:
        position = _skipped(step, data, position, end)
    tags, position = _length(data, position, end)
    for _ in range(tags):
        tag, position = _length(data, position, end)
        size, position = _length(data, position, end)
        if size > end - position:
            _corrupt(f"a tagged field of {size} bytes where {end - position} are left")
        field_end = position + size
        known = plan.tagged.get(tag)
        if known is not None and _skipped(known, data, position, field_end) != field_end:
            _corrupt(f"tagged field {tag} does not fill its {size} bytes")
        position = field_end
    return position


def _skipped(step: int | _Skip, data: Buffer, position: int, end: int) -> int:
    if not isinstance(step, int):
        return step(data, position, end)
    if step > end - position:
        _corrupt("a field ends beyond the data")
    return position + step


def _length(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Read an unsigned varint of 32 bits, of five bytes at most."""
    value = shift = 0
    while position < end and shift <= _MAX_VARINT_SHIFT:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise CorruptionError("the varint of a length does not end")


def _corrupt(what: str) -> NoReturn:
    raise CorruptionError(what)
