"""Markers that a leader appends: what is refused, and their batches. [P]

Kafka `ProducerAppendInfo.checkProducerEpoch`, `checkCoordinatorEpoch`. In Kafka's order:

- A marker of the transaction versions 0 and 1 has the producer's epoch or a newer one. One of version 2 ends
  a transaction of the epoch before: it has a newer epoch, or the same one where nothing is open (it was
  written before, KAFKA-19999) or where there is no newer. Else INVALID_PRODUCER_EPOCH.
- A marker of an older coordinator than the producer's last one: TRANSACTION_COORDINATOR_FENCED (invariant
  X9).

Followers append what their leader has, and refuse none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import NO_EPOCH
from service.hot.producers import ProducerStates

_LAST_EPOCH: Final = 32767
_TV2: Final = 2


class Marker(NamedTuple):
    """A marker to be appended. ``transaction_version``: of the transaction that it ends."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int


class _Producer(NamedTuple):
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    is_open: bool = False


def judge(producers: ProducerStates, markers: Iterable[Marker]) -> list[RequestError | None]:
    """Return why each marker is refused, None for those that may be appended in this order."""
    seen: dict[int, _Producer] = {}
    verdicts = []
    for marker in markers:
        known = seen.get(marker.producer_id) or _known(producers, marker.producer_id)
        verdict = _refusal(marker, known)
        if verdict is None:
            seen[marker.producer_id] = _Producer(marker.producer_epoch, marker.coordinator_epoch)
        verdicts.append(verdict)
    return verdicts


def _known(producers: ProducerStates, producer_id: int) -> _Producer:
    entry = producers.get(producer_id)
    if entry is None:
        return _Producer()
    return _Producer(entry.epoch, entry.coordinator_epoch, entry.txn_first_offset >= 0)


def _refusal(marker: Marker, known: _Producer) -> RequestError | None:
    epoch, current = marker.producer_epoch, known.epoch
    if marker.producer_id < 0:
        return RequestError(ErrorCode.invalid_request, f"producer id {marker.producer_id} of a marker")
    is_fresh = epoch >= current
    if marker.transaction_version >= _TV2:
        is_again = epoch == current and (not known.is_open or epoch == _LAST_EPOCH)
        is_fresh = epoch > current or is_again
    if not is_fresh:
        return RequestError(
            ErrorCode.invalid_producer_epoch,
            f"a marker of version {marker.transaction_version} has epoch {epoch} of producer "
            f"{marker.producer_id}, whose last epoch is {current}",
        )
    if marker.coordinator_epoch < known.coordinator_epoch:
        return RequestError(
            ErrorCode.transaction_coordinator_fenced,
            f"a marker of coordinator epoch {marker.coordinator_epoch} for producer {marker.producer_id}, "
            f"whose last one had {known.coordinator_epoch}",
        )
    return None
