"""Codecs compiled from kio's dataclasses: the bytes of one version to and from the canonical message. [P]

kio has one frozen dataclass per message and version, generated from Kafka's schemas. A `Decoder` reads the
bytes of version *v* into the canonical class (the newest version's) by field name: fields that *v* lacks get
the canonical default, fields that the canonical class lacks are dropped. An `Encoder` does the opposite.
kio's own reader is not used on a peer's bytes: it allocates by the claimed array length, and refuses unknown
tagged fields.

As in kio, a zero UUID is None and a duration a ``timedelta``. Encoders also take plain milliseconds for
durations and datetimes, and integers for error codes.

Example::

    codec = compile_steps(v1.ListOffsetsRequest, v11.ListOffsetsRequest)
    codec.read(Cursor(body)).isolation_level   # 0: version 1 has no such field
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    is_optional,
)

from service.wire import primitives as p
from service.wire.errors import MalformedMessage
from service.wire.field_runs import FieldRun, FixedLayout
from service.wire.primitives import Cursor, Encoded, Sink

Decoder = Callable[[Cursor], Any]
Encoder = Callable[[bytearray, Any], None]
Steps = Generator[None, None, Any]
"""Work with pauses, in which other requests may run; returns its result."""
ReadSteps = Callable[[Cursor], Steps]
WriteSteps = Callable[[Sink, Any], Steps]

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def millis(duration: timedelta | int) -> int:
    """Return a canonical message's duration in milliseconds."""
    return duration // _MS if isinstance(duration, timedelta) else duration


_ERROR_CODES = {int(code): code for code in ErrorCode}


def _error_code(value: int) -> int:
    return _ERROR_CODES.get(value, value)


def _duration(value: int) -> timedelta:
    """Convert milliseconds; beyond ``timedelta``'s range of 2.7 million years they become the limit."""
    try:
        return timedelta(milliseconds=value)
    except OverflowError:
        return timedelta.max if value > 0 else timedelta.min


def _time(value: int) -> datetime | None:
    if value == -1:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError as e:
        raise MalformedMessage(f"timestamp {value} is out of range") from e


def _epoch_ms(value: datetime | int | None) -> int:
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MS
    return -1 if value is None else value


def _id(value: bytes) -> UUID | None:
    return None if value == p.ZERO_UUID.bytes else p.uuid_from_bytes(value)


def _id_bytes(value: UUID | None) -> bytes:
    return (p.ZERO_UUID if value is None else value).bytes


class _Type(NamedTuple):
    """One wire type: its reader, writer, fewest bytes, and Kafka's default if the schema names none. Types
    that hold arrays have a reader and a writer in steps, too; those of fixed size have a `layout`.
    """

    read: Decoder
    write: Encoder
    min_bytes: int
    default: object
    read_steps: ReadSteps | None = None
    write_steps: WriteSteps | None = None
    layout: FixedLayout | None = None


def _fixed(layout: FixedLayout, default: object = 0) -> _Type:
    code, load, dump = layout
    struct = Struct(">" + code)

    def read(cursor: Cursor) -> Any:
        (value,) = struct.unpack_from(cursor.data, cursor.position)
        cursor.position += struct.size
        return value if load is None else load(value)

    def write(out: bytearray, value: Any) -> None:
        out += struct.pack(value if dump is None else dump(value))

    return _Type(read, write, struct.size, default, layout=layout)


_FIXED = {
    "int8": _fixed(FixedLayout("b")),
    "int16": _fixed(FixedLayout("h")),
    "uint16": _fixed(FixedLayout("H")),
    "int32": _fixed(FixedLayout("i")),
    "uint32": _fixed(FixedLayout("I")),
    "int64": _fixed(FixedLayout("q")),
    "float64": _fixed(FixedLayout("d"), 0.0),
    "bool": _fixed(FixedLayout("?"), False),
    "uuid": _fixed(FixedLayout("16s", _id, _id_bytes), None),
    "error_code": _fixed(FixedLayout("h", _error_code), ErrorCode.none),
    "timedelta_i32": _fixed(FixedLayout("i", _duration, millis), timedelta(0)),
    "timedelta_i64": _fixed(FixedLayout("q", _duration, millis), timedelta(0)),
    "datetime_i64": _fixed(FixedLayout("q", _time, _epoch_ms), None),
}
_SIZED = {  # (type, flexible, nullable)
    ("string", False, False): _Type(Cursor.string, p.write_string, 2, ""),
    ("string", False, True): _Type(Cursor.nullable_string, p.write_nullable_string, 2, ""),
    ("string", True, False): _Type(Cursor.compact_string, p.write_compact_string, 1, ""),
    ("string", True, True): _Type(Cursor.nullable_compact_string, p.write_nullable_compact_string, 1, ""),
    ("bytes", False, False): _Type(Cursor.bytes, p.write_bytes, 4, b""),
    ("bytes", False, True): _Type(Cursor.nullable_bytes, p.write_nullable_bytes, 4, b""),
    ("bytes", True, False): _Type(Cursor.compact_bytes, p.write_compact_bytes, 1, b""),
    ("bytes", True, True): _Type(Cursor.nullable_compact_bytes, p.write_nullable_compact_bytes, 1, b""),
}


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> _Type:
    fixed = _FIXED.get(kafka_type)
    if fixed is not None:
        return fixed
    return _SIZED["bytes" if kafka_type == "records" else kafka_type, flexible, nullable]


def _array(element: _Type, compact: bool, nullable: bool) -> _Type:
    read_element, write_element, min_bytes, _, element_read_steps, element_write_steps, _ = element

    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = cursor.uvarint() - 1 if compact else cursor.int32()
        if count < 0 and nullable:
            return None
        return tuple([read_element(cursor) for _ in range(cursor.bound(count, min_bytes))])

    def read_steps(cursor: Cursor) -> Steps:
        count = cursor.uvarint() - 1 if compact else cursor.int32()
        if count < 0 and nullable:
            return None
        items = []
        for _ in range(cursor.bound(count, min_bytes)):
            if element_read_steps is not None:
                items.append((yield from element_read_steps(cursor)))
            else:
                items.append(read_element(cursor))
            if cursor.is_pause():
                yield
        return tuple(items)

    def write_count(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError("an array that is not nullable is null")
            count = -1
        else:
            count = len(value)
        if compact:
            p.write_uvarint(out, count + 1)
        else:
            p.write_int32(out, count)

    def write(out: bytearray, value: Any) -> None:
        write_count(out, value)
        for item in value or ():
            if type(item) is Encoded:
                out += item
            else:
                write_element(out, item)

    def write_steps(sink: Sink, value: Any) -> Steps:
        write_count(sink.out, value)
        for item in value or ():
            if type(item) is Encoded:
                sink.share(item)
            elif element_write_steps is not None:
                yield from element_write_steps(sink, item)
            else:
                write_element(sink.out, item)
            if sink.is_pause():
                yield

    return _Type(read, write, 1 if compact else 4, (), read_steps, write_steps)


def _nullable_struct(entity: _Type) -> _Type:
    """Return the type of a struct after a presence byte (KIP-893)."""

    def read(cursor: Cursor) -> Any:
        return None if cursor.int8() < 0 else entity.read(cursor)

    def write(out: bytearray, value: Any) -> None:
        p.write_int8(out, -1 if value is None else 1)
        if value is not None:
            entity.write(out, value)

    def read_steps(cursor: Cursor) -> Steps:
        if cursor.int8() < 0:
            return None
        assert entity.read_steps is not None
        return (yield from entity.read_steps(cursor))

    def write_steps(sink: Sink, value: Any) -> Steps:
        p.write_int8(sink.out, -1 if value is None else 1)
        if value is not None:
            assert entity.write_steps is not None
            yield from entity.write_steps(sink, value)

    if entity.read_steps is None:
        return _Type(read, write, 1, None)
    return _Type(read, write, 1, None, read_steps, write_steps)


def _default(field: Field[Any]) -> object:
    """Return the canonical value of a field that a version lacks: the schema's default, else Kafka's default
    for the type.
    """
    if field.default is not MISSING:
        return cast("object", field.default)
    kind = classify_field(field)
    if isinstance(kind, EntityTupleField | PrimitiveTupleField):
        return ()
    if isinstance(kind, EntityField):
        return None if is_optional(field) else _all_defaults(kind.type_)
    return _primitive(field.metadata["kafka_type"], True, is_optional(field)).default


def _all_defaults(entity: type[Any]) -> object:
    return entity_of_defaults(entity)


def entity_of_defaults(entity: type[Any], **values: object) -> Any:
    """Return an entity with `values` and, in its other fields, the schema's defaults."""
    return entity(**{field.name: _default(field) for field in fields(entity)} | values)


def _field_type(field: Field[Any], canonical: Field[Any] | None, flexible: bool) -> _Type:
    """Return the wire type of the version's `field`. `canonical` is the canonical class's field, None if it
    has none.
    """
    kind = classify_field(field)
    nullable = is_optional(field)
    if isinstance(kind, EntityField | EntityTupleField):
        other = classify_field(canonical) if canonical is not None else kind
        assert isinstance(other, EntityField | EntityTupleField)
        entity = _entity(kind.type_, other.type_)
        if kind.is_array:
            return _array(entity, flexible, nullable)
        return _nullable_struct(entity) if nullable else entity
    kafka_type = field.metadata["kafka_type"]
    if kind.is_array:
        return _array(_primitive(kafka_type, flexible, False), flexible, nullable)
    return _primitive(kafka_type, flexible, nullable)


_Entry = tuple[str | None, _Type, object]
"""Name, type and default of a field. The name is None if the canonical class lacks the field."""


class _Plan(NamedTuple):
    """Layout of one struct in one version's bytes."""

    plain: list[_Entry]
    tagged: dict[int, _Entry]
    absent: dict[str, object]
    flexible: bool


def _plan(version: type[Any], canonical: type[Any]) -> _Plan:
    known = {field.name: field for field in fields(canonical)}
    flexible = bool(version.__flexible__)
    plan = _Plan([], {}, {}, flexible)
    carried = set()
    for field in fields(version):
        target = known.get(field.name)
        carried.add(field.name)
        entry = (
            None if target is None else field.name,
            _field_type(field, target, flexible),
            _default(field),
        )
        tag = get_field_tag(field)
        if tag is None:
            plan.plain.append(entry)
        else:
            plan.tagged[tag] = entry
    plan.absent.update({name: _default(field) for name, field in known.items() if name not in carried})
    return plan


def _parts(plain: Sequence[_Entry]) -> list[tuple[FieldRun | None, str | None, _Type, object]]:
    """Return each field as (None, name, type, default), but neighbours of fixed size as one run, with what
    the first of them has."""
    found: list[tuple[FieldRun | None, str | None, _Type, object]] = []
    for is_run, some in groupby(plain, lambda entry: entry[0] is not None and entry[1].layout is not None):
        entries = list(some)
        if is_run and len(entries) > 1:
            layouts = [(cast("str", name), cast("FixedLayout", kind.layout)) for name, kind, _ in entries]
            entries = entries[:1]
            run: FieldRun | None = FieldRun(layouts)
        else:
            run = None
        found += [(run, *entry) for entry in entries]
    return found


def _read_tagged(cursor: Cursor, plan: _Plan, values: dict[str, Any]) -> None:
    for _ in range(cursor.tagged_fields()):
        tag = cursor.uvarint()
        size = cursor.uvarint()
        entry = plan.tagged.get(tag)
        if entry is None:
            cursor.take(size)
            continue
        name, kind, _default_value = entry
        start = cursor.position
        value = kind.read(cursor)
        if cursor.position - start != size:
            raise MalformedMessage(f"tagged field {tag} of {size} bytes holds {cursor.position - start}")
        if name is not None:
            values[name] = value


def _read_tagged_steps(cursor: Cursor, plan: _Plan, values: dict[str, Any]) -> Steps:
    """Do what `_read_tagged` does, in steps: a tagged field may hold arrays."""
    for _ in range(cursor.tagged_fields()):
        tag = cursor.uvarint()
        size = cursor.uvarint()
        entry = plan.tagged.get(tag)
        if entry is None:
            cursor.take(size)
            continue
        name, kind, _default_value = entry
        start = cursor.position
        value = kind.read(cursor) if kind.read_steps is None else (yield from kind.read_steps(cursor))
        if cursor.position - start != size:
            raise MalformedMessage(f"tagged field {tag} of {size} bytes holds {cursor.position - start}")
        if name is not None:
            values[name] = value


def _write_tagged(out: bytearray, plan: _Plan, message: Any) -> None:
    if not plan.tagged:
        out.append(0)
        return
    written = bytearray()
    count = 0
    for tag in sorted(plan.tagged):
        name, kind, default = plan.tagged[tag]
        value = default if name is None else getattr(message, name)
        if value == default:
            continue
        body = bytearray()
        kind.write(body, value)
        p.write_uvarint(written, tag)
        p.write_uvarint(written, len(body))
        written += body
        count += 1
    p.write_uvarint(out, count)
    out += written


def _write_tagged_steps(sink: Sink, plan: _Plan, message: Any) -> Steps:
    """Do what `_write_tagged` does, in steps: a tagged field may hold arrays."""
    written = bytearray()
    count = 0
    for tag in sorted(plan.tagged):
        name, kind, default = plan.tagged[tag]
        value = default if name is None else getattr(message, name)
        if value == default:
            continue
        body = Sink(bytearray())
        if kind.write_steps is None:
            kind.write(body.out, value)
        else:
            yield from kind.write_steps(body, value)
        p.write_uvarint(written, tag)
        p.write_uvarint(written, sum(map(len, body.parts)))
        for part in body.parts:
            written += part
        count += 1
    p.write_uvarint(sink.out, count)
    sink.out += written


def _entity(version: type[Any], canonical: type[Any]) -> _Type:
    plan = _plan(version, canonical)
    parts = _parts(plan.plain)
    kinds = [kind for _, kind, _ in (*plan.plain, *plan.tagged.values())]
    has_steps = any(kind.read_steps is not None for kind in kinds)
    initial = plan.absent | {name: default for name, _, default in plan.tagged.values() if name is not None}

    def read(cursor: Cursor) -> Any:
        values = dict(initial)
        for run, name, kind, _ in parts:
            if run is not None:
                run.read(cursor, values)
                continue
            value = kind.read(cursor)
            if name is not None:
                values[name] = value
        if plan.flexible:
            _read_tagged(cursor, plan, values)
        return canonical(**values)

    def write(out: bytearray, message: Any) -> None:
        for run, name, kind, default in parts:
            if run is not None:
                run.write(out, message)
                continue
            kind.write(out, default if name is None else getattr(message, name))
        if plan.flexible:
            _write_tagged(out, plan, message)

    def read_steps(cursor: Cursor) -> Steps:
        values = dict(initial)
        for run, name, kind, _ in parts:
            if run is not None:
                run.read(cursor, values)
                continue
            value = kind.read(cursor) if kind.read_steps is None else (yield from kind.read_steps(cursor))
            if name is not None:
                values[name] = value
        if plan.flexible:
            yield from _read_tagged_steps(cursor, plan, values)
        return canonical(**values)

    def write_steps(sink: Sink, message: Any) -> Steps:
        for run, name, kind, default in parts:
            if run is not None:
                run.write(sink.out, message)
                continue
            value = default if name is None else getattr(message, name)
            if kind.write_steps is None:
                kind.write(sink.out, value)
            else:
                yield from kind.write_steps(sink, value)
        if plan.flexible:
            yield from _write_tagged_steps(sink, plan, message)

    min_bytes = max(sum(kind.min_bytes for _, kind, _ in plan.plain) + plan.flexible, 1)
    if not has_steps:
        return _Type(read, write, min_bytes, None)
    return _Type(read, write, min_bytes, None, read_steps, write_steps)


class Codec(NamedTuple):
    """Reader and writer of one message and, if it holds arrays, those that work in steps."""

    read: Decoder
    write: Encoder
    read_steps: ReadSteps | None
    write_steps: WriteSteps | None


def compile_steps(version: type[Any], canonical: type[Any]) -> Codec:
    """Compile a codec of `version`'s bytes in terms of `canonical` objects, at once and in steps.

    Costs about a millisecond: cache it.
    """
    compiled = _entity(version, canonical)
    return Codec(compiled.read, compiled.write, compiled.read_steps, compiled.write_steps)


def element_encoder(version: type[Any], canonical: type[Any], path: Sequence[str]) -> Encoder:
    """Return a writer of one element of an array of the message, for bytes to reuse (`Encoded`).

    `path`: names of nested arrays, outermost first.
    """
    for name in path:
        kind = classify_field({field.name: field for field in fields(version)}[name])
        other = classify_field({field.name: field for field in fields(canonical)}[name])
        assert isinstance(kind, EntityTupleField)
        assert isinstance(other, EntityTupleField)
        version, canonical = kind.type_, other.type_
    return _entity(version, canonical).write


_DROPPED: Final[dict[tuple[type[Any], type[Any]], Mapping[str, object]]] = {}


def dropped_fields(version: type[Any], canonical: type[Any]) -> Mapping[str, object]:
    """Return the top-level canonical fields that `version` cannot carry, with their defaults: the values that
    a message of `version` must have.

    The result is cached, since each request that a node sends needs it.
    """
    found = _DROPPED.get((version, canonical))
    if found is None:
        carried = {field.name for field in fields(version)}
        found = {field.name: _default(field) for field in fields(canonical) if field.name not in carried}
        _DROPPED[version, canonical] = found
    return found
