"""A full Fetch request topic by topic, with each partition as its bytes, or *row*. [P]

Rows of one version have one size, unless they have tagged fields. So the rows of a request can be compared
with those of an earlier one without being parsed, whatever their order, and only those that differ are
parsed.
"""

from __future__ import annotations

import struct
from typing import Final

from service.base.types import Buffer
from service.wire.errors import MalformedMessage
from service.wire.fetch import (
    FetchPartition,
    FetchRequestView,
    parse_end,
    parse_head,
    parse_partition,
    row_bytes,
    topic_count,
    topic_key,
)
from service.wire.primitives import Cursor
from service.wire.produce import TopicKey

_FIRST_FLEXIBLE: Final = 12
_LEAST_ROW_BYTES: Final = 16
_FAULTS: Final = (struct.error, IndexError, MalformedMessage)


class UnusualRows(Exception):
    """The request has to be parsed as a whole: its rows have tagged fields, or it is malformed."""


def parse_row(version: int, row: bytes) -> FetchPartition:
    """Return the partition of a row. Raises `UnusualRows` if it has tagged fields: then the next row is not
    where it would be otherwise."""
    if version >= _FIRST_FLEXIBLE and row[-1]:
        raise UnusualRows
    return parse_partition(version, row)


class FetchRows:
    """Reader of one request. Raises `UnusualRows` wherever `parse_fetch` has to judge it."""

    __slots__ = ("_cursor", "_head", "_row_bytes", "topics", "version")

    def __init__(self, version: int, frame: Buffer, position: int) -> None:
        self.version = version
        self._cursor = Cursor(frame, position)
        self._row_bytes = row_bytes(version)
        try:
            self._head = parse_head(version, self._cursor)
            self.topics = topic_count(version, self._cursor)
            """topics to read"""
        except _FAULTS as e:
            raise UnusualRows from e

    @property
    def is_without_session(self) -> bool:
        """A consumer's full fetch, which wants no session."""
        replica_id, *_, session_id, session_epoch = self._head
        return replica_id < 0 and session_id == 0 and session_epoch == -1

    @property
    def bytes_left(self) -> int:
        return self._cursor.end - self._cursor.position

    def next_topic(self) -> tuple[TopicKey, memoryview]:
        """Return the key of the next topic and its rows, one behind the other."""
        cursor, is_flexible = self._cursor, self.version >= _FIRST_FLEXIBLE
        try:
            key = topic_key(self.version, cursor)
            size = cursor.count(is_flexible, _LEAST_ROW_BYTES) * self._row_bytes
            start, end = cursor.position, cursor.position + size
            if not size or end > cursor.end:
                raise UnusualRows
            cursor.position = end
            if is_flexible:
                cursor.skip_tagged_fields()
        except _FAULTS as e:
            raise UnusualRows from e
        return key, memoryview(cursor.data)[start:end]

    def end(self) -> FetchRequestView:
        """Return the request without its topics, once all of them were read."""
        version, cursor = self.version, self._cursor
        try:
            if version >= 7 and topic_count(version, cursor):
                raise UnusualRows
            fetch = parse_end(version, cursor, self._head, [], [])
        except _FAULTS as e:
            raise UnusualRows from e
        if fetch.replica_id >= 0:
            raise UnusualRows  # since version 15 this is a tagged field
        return fetch
