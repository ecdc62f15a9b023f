"""Protobuf schemas as their authors wrote them, compiled by protoc, and the messages in them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_MAIN: Final = "firn_main.proto"
_OF_NAMES: Final = (errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
"""Errors of files whose names are a file and a folder, or too long."""
_PROBE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
MOST_INDEXES: Final = 16


def compiled(text: str, references: Mapping[str, str]) -> tuple[Any, Any]:
    """Return a pool of descriptors and the schema's file in it.

    Raises `ValueError`, `TypeError`, `ImportError`; `OSError` where no files can be written.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from grpc_tools import protoc
    except ImportError as e:
        raise ImportError("Protobuf schemas need the extra schemas: grpcio-tools is not installed") from e
    with tempfile.TemporaryDirectory(prefix="firn-proto-") as made:
        folder = Path(made)
        out = folder / "out.pb"
        try:
            for name, written in {**references, _MAIN: text}.items():
                if not _NAME.fullmatch(name):
                    raise ValueError(f"{name[:100]!r} is not the name of a schema")
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(written, "utf-8")
            known = Path(protoc.__file__).parent / "_proto"
            options = [f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}"]
            if protoc.main(["protoc", *options, _MAIN]) != 0 or not out.exists():
                out.write_bytes(bytes(_PROBE_BYTES))  # fails where protoc failed for want of room
                raise ValueError("the schema is not Protobuf: protoc does not compile it")
        except OSError as e:
            if e.errno in _OF_NAMES:
                raise ValueError(
                    "the names of its references cannot be names of files beside each other"
                ) from e
            raise
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    return pool, pool.FindFileByName(_MAIN)


def indexes_of(data: bytes) -> tuple[Sequence[int], int]:
    """Return the indexes of the message in its schema, and where the message begins (Confluent's format)."""
    count, at = _varint(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MOST_INDEXES:
        raise ValueError(f"{count} indexes of a message")
    found = []
    for _ in range(count):
        index, at = _varint(data, at)
        found.append(index)
    return found, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint. Raises `ValueError` beyond the data."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the indexes of the message are cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def message_at(main: Any, indexes: Sequence[int]) -> Any:
    """Return the descriptor of a message by its place in the file; None if there is none."""
    from google.protobuf import descriptor_pb2

    proto = descriptor_pb2.FileDescriptorProto()
    main.CopyToProto(proto)
    names: list[str] = []
    level: Any = proto.message_type
    for index in indexes:
        if not 0 <= index < len(level):
            return None
        names.append(level[index].name)
        level = level[index].nested_type
    found = main.message_types_by_name.get(names[0])
    for name in names[1:]:
        found = found.nested_types_by_name[name]
    return found


def message_named(pool: Any, main: Any, name: str | None) -> Any:
    """Return the descriptor of a message by its full or short name, by default of the first; else None."""
    if name is None:
        return message_at(main, (0,))
    for one in (name, f"{main.package}.{name}" if main.package else name):
        with contextlib.suppress(KeyError):
            return pool.FindMessageTypeByName(one)
    return None


def quiet_output() -> int:
    """Give standard output to nobody, as protoc may write to it; return a descriptor of what it was."""
    kept = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return kept
