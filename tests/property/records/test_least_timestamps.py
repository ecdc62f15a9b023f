"""The least timestamp of a run of batches is that of its records, or it is not known."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.types import NO_TIMESTAMP
from service.records.batch import CompressionType, iter_headers
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.scan import scan_batches
from service.remote.format.key_filter import LeastTimestamps
from tests.property.records.test_kernel_parity import logs

INFLATED = 1 << 20
times = st.one_of(
    st.integers(0, 1 << 42),
    st.integers(0, 1 << 42),
    st.sampled_from([0, 1, 2**61, 2**62]),
    st.sampled_from([NO_TIMESTAMP, NO_TIMESTAMP, -2, -(2**61)]),
)


def least_of(log: bytes, position: int = 0) -> int:
    return LeastTimestamps(INFLATED).add(memoryview(log), scan_batches(log, position))


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
    assert least_of(data, before) == expected


@given(log=logs())
@settings(max_examples=200, deadline=None)
def test_the_least_timestamp_never_exceeds_the_maximum(log: bytes) -> None:
    scan = scan_batches(log)
    headers = list(iter_headers(log, 0, scan.end))
    assert least_of(log) <= max([-1, *(h.max_timestamp for h in headers)])
