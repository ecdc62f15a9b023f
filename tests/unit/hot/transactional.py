"""Transactional batches and markers, as a leader appends them and as its followers get them."""

from __future__ import annotations

from service.base.errors import RequestError
from service.hot.log import LocalLog
from service.hot.markers import Marker
from service.hot.state import AppendInfo
from service.hot.verification import VERIFICATION_OFF
from service.records.batch import stamp
from service.records.markers import encode_marker
from service.records.validation import AppendOrigin
from tests.unit.hot.logs import START_MS, batch


def send(log: LocalLog, pid: int, sequence: int, count: int = 1, *, epoch: int = 0) -> AppendInfo:
    """Append a transactional batch that nobody needs to verify; -1 for the sequence: of a coordinator."""
    one = batch(count, producer_id=pid, epoch=epoch, sequence=sequence, is_transactional=True)
    if sequence < 0:
        one = one._replace(origin=AppendOrigin.COORDINATOR)
    return log.append(one, 0, START_MS, VERIFICATION_OFF)


def plain(log: LocalLog, count: int = 1) -> AppendInfo:
    return log.append(batch(count), 0, START_MS)


def end(
    log: LocalLog, pid: int, *, is_commit: bool, epoch: int = 0, coordinator: int = 1, version: int = 1
) -> AppendInfo:
    """Append a marker that is not refused."""
    [found] = log.append_markers([Marker(pid, epoch, coordinator, is_commit, version)], 0, START_MS)
    assert not isinstance(found, RequestError), found
    return found


def commit(log: LocalLog, pid: int, **options: int) -> AppendInfo:
    return end(log, pid, is_commit=True, **options)


def abort(log: LocalLog, pid: int, **options: int) -> AppendInfo:
    return end(log, pid, is_commit=False, **options)


def data_of(offset: int, pid: int, sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    """A transactional batch with its offset."""
    one = batch(count, producer_id=pid, epoch=epoch, sequence=sequence, is_transactional=True).data
    stamp(one, 0, offset, 0)
    return bytes(one)


def marker_of(offset: int, pid: int, *, is_commit: bool, epoch: int = 0, coordinator: int = 1) -> bytes:
    """A marker with its offset."""
    one = encode_marker(pid, epoch, coordinator, is_commit=is_commit, timestamp=START_MS)
    stamp(one, 0, offset, 0)
    return bytes(one)
