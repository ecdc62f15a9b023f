"""The least timestamp of a run of batches is that of its records, or it is not known."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.types import NO_TIMESTAMP
from service.records.batch import CompressionType, iter_headers
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.scan import least_timestamp, scan_batches
from tests.property.records.test_kernel_parity import LIVES, logs, payloads, same

INFLATED = 1 << 20
times = st.one_of(
    st.integers(0, 1 << 42),
    st.integers(0, 1 << 42),
    st.sampled_from([0, 1, 2**61, 2**62]),
    st.sampled_from([NO_TIMESTAMP, NO_TIMESTAMP, -2, -(2**61)]),
)


@st.composite
def sound_logs(draw: st.DrawFn) -> bytes:
    """Batches of every codec and both timestamp types, with timestamps in any order."""
    log = bytearray()
    offset = 0
    stamps = draw(st.sampled_from([times, st.integers(0, 1 << 42), st.integers(10**12, 10**12 + 99)]))
    for _ in range(draw(st.integers(1, 6))):
        builder = BatchBuilder(
            offset,
            draw(st.sampled_from(CompressionType)),
            log_append_time=draw(st.none() | st.integers(0, 1 << 42)),
        )
        for timestamp in draw(st.lists(stamps, min_size=1, max_size=5)):
            builder.add(timestamp, None, b"v")
        log += builder.build()
        offset += len(builder)
    return bytes(log)


@given(log=sound_logs(), before=st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_the_least_timestamp_is_that_of_the_records_or_unknown(log: bytes, before: int) -> None:
    found = [record.timestamp for record in iter_records(log)]
    expected = min(found) if min(found) >= 0 else NO_TIMESTAMP
    data = bytes(before) + log
    assert least_timestamp(scan_batches(data, before), data, INFLATED) == expected


@given(log=logs(), start=st.integers(-3, 400), end=st.integers(-3, 4000), room=st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_any_span_is_answered_alike(log: bytes, start: int, end: int, room: int) -> None:
    same("least_timestamps", log, start, end, array("q", bytes(8 * room)))
    same("least_timestamps", log, 0, len(log), array("q", bytes(8 * room)))


@given(
    payload=payloads(), base=st.integers(-(2**63), 2**63 - 1), extra=st.sampled_from([0, 0, 0, 1, -1, 2**40])
)
@settings(max_examples=400, deadline=None)
def test_records_are_walked_alike_whatever_they_are(
    payload: tuple[bytes, int], base: int, extra: int
) -> None:
    data, count = payload
    same("least_timestamp", data, 0, len(data), count + extra, base)


@given(
    data=st.binary(max_size=200), count=st.integers(-2, 2**40), span=st.tuples(*[st.integers(-5, 210)] * 2)
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_answered_alike(data: bytes, count: int, span: tuple[int, int]) -> None:
    same("least_timestamp", data, *span, count, 0)
    same("least_timestamps", data, *span, array("q", bytes(8 * 4)))


@given(log=logs())
@settings(max_examples=200, deadline=None)
def test_the_least_timestamp_never_exceeds_the_maximum(log: bytes) -> None:
    scan = scan_batches(log)
    headers = list(iter_headers(log, 0, scan.end))
    for life in LIVES:
        out = array("q", bytes(8 * len(headers)))
        assert life.least_timestamps(log, 0, scan.end, out) == len(headers)
        assert all(one <= max(h.max_timestamp, -1) for one, h in zip(out, headers, strict=True))
    assert least_timestamp(scan, log, INFLATED) <= max([-1, *(h.max_timestamp for h in headers)])
