"""What a control module hands back: records to write, and the answer to give once they are committed. [P]"""

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
    """A ``kraft.version``: it lies in the quorum's own control records, and not in the metadata."""

    level: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """Nothing has changed yet. `is_atomic`: the records count together or not at all: one batch."""

    frames: tuple[Frame, ...]
    response: R
    is_atomic: bool = True
    quorum_level: QuorumLevel | None = None
    """what the quorum is to have before the records are written; where it refuses, nothing is"""


NEWEST_US: Final = 1


def decided_in_steps(records: Sequence[MetadataRecord], response: R) -> Steps[Decision[R]]:
    """As `decided`."""
    if len(records) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    frames = []
    for record in records:
        yield NEWEST_US
        frames.append(newest(record))
    return Decision(tuple(frames), response)


def decided(records: Iterable[MetadataRecord], response: R) -> Decision[R]:
    """A user's change: atomic, each record in its newest version.

    Raises `RequestError` POLICY_VIOLATION beyond 10,000 records, as ``QuorumController`` does.
    """
    frames = tuple(map(newest, records))
    if len(frames) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    return Decision(frames, response)
