"""State of a replay: its job, the progress of each partition, the rate limit, the rest of a split. [P]"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError
from service.remote.format.keys import MAX_OFFSET
from service.spark.plan.splits import Split

JOB_KEY: Final = "job.json"
MAX_STATE_BYTES: Final = 64 << 20
FORMAT: Final = "firn-replay"
BURST_S: Final = 0.1


class Part(NamedTuple):
    """One partition to replay: `begin_offset` to before `end_offset`, as resolved when the replay began."""

    topic: str
    topic_id: str
    partition: int
    begin_offset: int
    end_offset: int

    def key(self, attempt: int) -> str:
        """Return the key of the `PartState` of the nth attempt, from 0 on."""
        return f"{self.topic_id}/{self.partition}{f'.{attempt}' if attempt else ''}.json"


class PartState(NamedTuple):
    """Progress of one attempt at a partition; only that attempt writes it.

    Everything below `next_offset` was acknowledged; counts are of all attempts, repeated records included.
    `is_ended`: nothing of this attempt is in flight, and it will send nothing more.
    """

    next_offset: int
    records: int = 0
    size_bytes: int = 0
    run: int = 0
    is_ended: bool = False

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, "format_version": 1, **self._asdict()}).encode()


def decode_state(data: bytes) -> PartState:
    """Parse a partition's state; `ConfigError` for anything that `encode` has not written."""
    document = _document(data)
    defaults = PartState._field_defaults
    values: dict[str, Any] = {name: document.get(name, defaults.get(name)) for name in PartState._fields}
    if not all(isinstance(one, int) and 0 <= one <= MAX_OFFSET for one in values.values()):
        raise ConfigError(f"the state of a partition holds {list(values.values())}")
    return PartState(**values)


class Job(NamedTuple):
    """The arguments and partitions of a replay: later runs with the same state must have the same arguments.

    `target_id` is the id of the topic to write; None where the brokers have no topic ids.
    """

    asked: Mapping[str, Any]
    parts: tuple[Part, ...]
    target_id: str | None = None

    def encode(self) -> bytes:
        document = {"format": FORMAT, "format_version": 1, **self._asdict()}
        return json.dumps(document, indent=1).encode()


def decode_job(data: bytes) -> Job:
    """Parse a job; `ConfigError` for anything that `encode` has not written."""
    document = _document(data)
    try:
        parts = tuple(Part(str(t), str(i), int(p), int(b), int(e)) for t, i, p, b, e in document["parts"])
        target_id = document.get("target_id")
        return Job(dict(document["asked"]), parts, None if target_id is None else str(target_id))
    except (KeyError, TypeError, ValueError) as e:
        raise ConfigError(f"{JOB_KEY} of the state is not one of a replay: {e}") from e


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"the state is not JSON: {e}") from e
    if (
        not isinstance(document, dict)
        or document.get("format") != FORMAT
        or document.get("format_version") != 1
    ):
        raise ConfigError("the state is not one of a replay, or of a newer version")
    return document


class Acknowledged:
    """The offset up to which all records are acknowledged, of offsets sent in order, acknowledged in any.

    >>> offsets = Acknowledged(5)
    >>> offsets.sent(5), offsets.sent(9), offsets.done(9), offsets.next_offset
    (None, None, None, 5)
    >>> offsets.done(5), offsets.next_offset
    (None, 10)
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._sent: deque[int] = deque()
        self._early: set[int] = set()

    def sent(self, offset: int) -> None:
        self._sent.append(offset)

    def done(self, offset: int) -> None:
        self._early.add(offset)
        while self._sent and self._sent[0] in self._early:
            first = self._sent.popleft()
            self._early.remove(first)
            self.next_offset = first + 1

    @property
    def waiting(self) -> int:
        return len(self._sent)


class RateLimiter:
    """Limit of records and bytes a second, None for no limit; time lost in a pause is hardly made up."""

    def __init__(self, records_per_second: float | None, bytes_per_second: float | None) -> None:
        self._per_record = 1 / records_per_second if records_per_second else 0.0
        self._per_byte = 1 / bytes_per_second if bytes_per_second else 0.0
        self._due = 0.0

    def wait_s(self, now_s: float, size: int) -> float:
        """Return how long to wait before the next record, of `size` bytes, is sent."""
        at = max(self._due, now_s - BURST_S)
        self._due = at + max(self._per_record, self._per_byte * size)
        return max(0.0, at - now_s)


def rest_of(split: Split, next_offset: int) -> Split:
    """Return the part of a split from this offset on; `size_bytes` stays that of the whole split."""
    pieces = tuple(
        piece._replace(begin_offset=max(piece.begin_offset, next_offset))
        for piece in split.pieces
        if piece.end_offset > next_offset
    )
    return Split(pieces, split.size_bytes)
