"""Lengths that metadata records claim and do not have are reported, and crash nothing.

kio's reader would end the process with SIGABRT, so the hostile frames are decoded in a child of the test.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.metadata.entities import read_entity
from service.metadata.frames import UnknownRecord, decode_frame, encode_frame, newest
from service.metadata.records import RECORD_TYPES, MetadataRecord

CLAIMS: Final = (1 << 16, 1 << 20, (1 << 28) - 1, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
MEMORY_BYTES: Final = 4 << 30
_SCALARS: Final[dict[type, Any]] = {
    str: "name",
    int: 7,
    bool: True,
    UUID: UUID(int=1 << 90),
    bytes: b"key",
    float: 0.5,
}


class Hostile(NamedTuple):
    """`field` None: any byte of the frame was made into a length; it may be sound then."""

    record_type: str
    field: str | None
    data: bytes


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def element_of(hint: Any) -> Any | None:
    """The type of an array's elements; None for what is no array."""
    found = next((one for one in (hint, *get_args(hint)) if get_origin(one) is tuple), None)
    return None if found is None else get_args(found)[0]


def sample(hint: Any) -> Any:
    """A value of that type, of no default."""
    element = element_of(hint)
    if element is not None:
        return (sample(element),) * 2
    kind = next((one for one in (hint, *get_args(hint)) if one in _SCALARS), None)
    return _SCALARS[kind] if kind is not None else full(hint)


def full(entity_type: type[Any]) -> Any:
    hints = get_type_hints(entity_type)
    return entity_type(**{one.name: sample(hints[one.name]) for one in fields(entity_type)})


def arrays_of(record: MetadataRecord) -> Iterator[tuple[str, int]]:
    """Each array of a record, and where in its frame the number of its elements stands."""
    data, hints = encode_frame(newest(record)), get_type_hints(type(record))
    for one in fields(record):  # type: ignore[arg-type]
        if element_of(hints[one.name]) is None:
            continue
        longer = replace(record, **{one.name: getattr(record, one.name) * 2})  # type: ignore[type-var]
        other = encode_frame(newest(longer))
        at = next(i for i in range(len(data)) if data[i] != other[i])
        yield one.name, at + ("tag" in one.metadata)  # a tagged field's size stands before


def hostile_frames() -> Iterator[Hostile]:
    for record_type in RECORD_TYPES.values():
        record = full(record_type)
        data, name = encode_frame(newest(record)), record_type.__name__
        assert decode_frame(data) == newest(record)
        arrays = dict(arrays_of(record))
        for claim in map(varint, CLAIMS):
            for array, at in arrays.items():
                assert data[at] == 3  # two elements, as compact arrays count
                yield Hostile(name, array, data[:at] + claim + data[at + 1 :])
                # where the size of a tagged field fits to it
                yield Hostile(name, array, data[: at - 1] + varint(100) + claim + data[at + 1 :] + bytes(100))
            for at in range(len(data)):
                yield Hostile(name, None, data[:at] + claim + data[at + 1 :])


def judge() -> None:
    """Print the result of each frame: run in a child, with little memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seen = 0
    for name, field, data in hostile_frames():
        seen += 1
        try:
            record = decode_frame(data).record
        except CorruptionError:
            continue
        if field is not None and not isinstance(record, UnknownRecord):  # its version became 100
            print(f"{name}.{field} was read: {data.hex()}")
    print(f"{seen} frames")


def test_no_claimed_length_of_a_record_crashes_the_process() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])
    lines = child.stdout.splitlines()
    assert len(lines) == 1, lines[:5]
    assert int(lines[0].split()[0]) > 1000


def test_every_array_of_every_record_is_among_them() -> None:
    arrays = {t.__name__: [name for name, _ in arrays_of(full(t))] for t in RECORD_TYPES.values()}
    assert {name: len(found) for name, found in arrays.items() if found} == {
        "RegisterBrokerRecord": 4,
        "PartitionRecord": 7,
        "PartitionChangeRecord": 7,
        "BrokerRegistrationChangeRecord": 2,
        "DelegationTokenRecord": 1,
        "ClientQuotaRecord": 1,
        "RegisterControllerRecord": 2,
        "RecoveredTopicRecord": 1,
        "ErasureRecord": 1,
        "ErasedRecord": 1,
    }


def test_a_tagged_field_that_does_not_fill_its_size_is_corrupt() -> None:
    record = full(next(t for t in RECORD_TYPES.values() if t.__name__ == "PartitionChangeRecord"))
    data = encode_frame(newest(record))
    arrays = list(arrays_of(record))
    assert len(arrays) == 7
    for _, at in arrays:
        with pytest.raises(CorruptionError, match=r"does not fill|ends too|are left|elements in"):
            decode_frame(data[: at - 1] + bytes([data[at - 1] + 1]) + data[at:] + b"\x00")


def test_an_entity_may_be_followed_by_others() -> None:
    record = full(RECORD_TYPES[0])
    body = encode_frame(newest(record))[3:]
    assert read_entity(type(record), body + b"more", "test") == (record, len(body))


if __name__ == "__main__":
    judge()
