"""Result of a control module: records to write, and the response once they are committed. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION
from service.metadata.frames import Frame, newest
from service.metadata.records import MetadataRecord

R = TypeVar("R")
EXCESSIVE: Final = "Unable to perform excessively large batch operation."


class QuorumLevel(NamedTuple):
    """``kraft.version`` to set: a control record of the quorum, not a metadata record."""

    level: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[R]):
    """Records and response; nothing has changed yet. `is_atomic`: all records go into one batch."""

    frames: tuple[Frame, ...]
    response: R
    is_atomic: bool = True
    quorum_level: QuorumLevel | None = None
    """Level that the quorum must accept before the records are written."""


def newest_frames(records: Sequence[MetadataRecord]) -> Steps[list[Frame]]:
    """Return the records as frames of their newest versions, in steps."""
    frames = []
    for record in records:
        yield
        frames.append(newest(record))
    return frames


def decided_in_steps(records: Sequence[MetadataRecord], response: R) -> Steps[ControllerResult[R]]:
    """Decide a user's change as `decided` does, in steps."""
    if len(records) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    return ControllerResult(tuple((yield from newest_frames(records))), response)


def decided(records: Iterable[MetadataRecord], response: R) -> ControllerResult[R]:
    """Decide a user's change: atomic, each record in its newest version.

    Raises `RequestError` POLICY_VIOLATION beyond 10,000 records, as ``QuorumController`` does.
    """
    frames = tuple(map(newest, records))
    if len(frames) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    return ControllerResult(frames, response)
