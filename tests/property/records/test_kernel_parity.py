"""One source, three lives: compiled, interpreted with Cython's shadow module, interpreted without Cython."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import service.records.kernel as imported
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.kernel_status import BATCH_FIELDS, MIN_RECORD_SIZE, RECORD_FIELDS, Status
from tests.support.kernels import interpreted

INT64 = st.integers(-(2**63), 2**63 - 1)


LIVES = [imported, *(interpreted(with_cython=found)["kernel"] for found in (True, False))]


def same(call: str, *arguments: object) -> object:
    """Call the function in every life and hand back their one answer; outputs are compared too."""
    answers = []
    for life in LIVES:
        own = [a[:] if isinstance(a, array) else a for a in arguments]
        try:
            answers.append((getattr(life, call)(*own), [a for a in own if isinstance(a, array)]))
        except IndexError as error:
            answers.append((str(error), []))
    assert answers[1:] == answers[:-1]
    return answers[0][0]


blobs = st.none() | st.binary(max_size=300)
records = st.lists(
    st.tuples(
        st.integers(0, 2**62) | st.just(-1),
        blobs,
        blobs,
        st.lists(st.tuples(st.binary(max_size=8), blobs), max_size=3),
    ),
    min_size=1,
    max_size=20,
)
edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """The records of a batch, perhaps damaged, and how many there were."""
    builder = BatchBuilder()
    rows = draw(records)
    for timestamp, key, value, headers in rows:
        builder.add(timestamp, key, value, headers)
    data = bytearray(builder.build()[61:])
    for at, byte in draw(edits):
        data[at % len(data)] = byte
    return bytes(data[: draw(st.integers(len(data) - 3, len(data)))]), len(rows)


@given(
    payload=payloads(), base=INT64, bounds=st.tuples(INT64, INT64), extra=st.sampled_from([0, 0, 0, 1, -1])
)
@settings(max_examples=400, deadline=None)
def test_records_are_checked_alike(
    payload: tuple[bytes, int], base: int, bounds: tuple[int, int], extra: int
) -> None:
    data, count = payload
    same("check_records", data, 0, len(data), max(0, count + extra), base, *bounds)


@given(payload=payloads())
@settings(max_examples=300, deadline=None)
def test_records_are_indexed_alike_and_never_outside_the_data(payload: tuple[bytes, int]) -> None:
    data, count = payload
    rows = array("q", bytes(8 * RECORD_FIELDS * count))
    status, index = imported.index_records(data, 0, len(data), count, rows)
    assert same("index_records", data, 0, len(data), count, rows) == (status, index)
    if status == Status.OK:
        assert count * MIN_RECORD_SIZE <= len(data)
        for at in range(0, len(rows), RECORD_FIELDS):
            for position, size in (rows[at + 2 : at + 4], rows[at + 4 : at + 6]):
                assert position >= 0
                assert position + max(size, 0) <= len(data)


@given(
    data=st.binary(max_size=200), count=st.integers(-2, 2**40), span=st.tuples(*[st.integers(-5, 210)] * 2)
)
@settings(max_examples=400, deadline=None)
def test_any_bytes_and_any_claim_are_answered_alike(data: bytes, count: int, span: tuple[int, int]) -> None:
    same("check_records", data, *span, count, 0, -(2**63), 2**63 - 1)
    same("index_records", data, *span, min(count, 1000), array("q", bytes(8 * RECORD_FIELDS * 50)))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    log = bytearray()
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        builder = BatchBuilder(offset, draw(st.sampled_from(CompressionType)), draw(st.integers(-1, 9)))
        for timestamp, key, value, headers in draw(records):
            builder.add(timestamp, key, value, headers)
        log += builder.build()
        offset += len(builder) + draw(st.integers(0, 3))
    for at, byte in draw(edits):
        log[at % len(log)] = byte
    return bytes(log[: draw(st.integers(0, len(log)))]) if draw(st.booleans()) else bytes(log)


@given(
    log=logs(), room=st.integers(0, 8), limit=st.sampled_from([0, 500, 1 << 30]), floor=st.integers(0, 2**41)
)
@settings(max_examples=200, deadline=None)
def test_batches_are_walked_alike(log: bytes, room: int, limit: int, floor: int) -> None:
    out = array("q", bytes(8 * BATCH_FIELDS * room))
    same("scan_batches", log, 0, len(log), 0, limit, out)
    same("scan_batches", log, 0, len(log), floor, limit, out)


@given(log=logs(), start=st.integers(-3, 400), end=st.integers(-3, 4000))
@settings(max_examples=150, deadline=None)
def test_a_walk_of_any_span_is_answered_alike(log: bytes, start: int, end: int) -> None:
    same("scan_batches", log, start, end, 0, 1 << 30, array("q", bytes(8 * BATCH_FIELDS * 8)))


@given(zigzag=st.integers(0, 2**70 - 1), padding=st.integers(0, 6))
@settings(deadline=None)
def test_varints_of_any_length_mean_the_same(zigzag: int, padding: int) -> None:
    varint = bytearray()
    while zigzag > 0x7F:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag | (0x80 if padding else 0))
    varint += b"\x80" * max(0, padding - 1) + b"\0" * bool(padding)
    for body in (b"\0" + varint + b"\0\1\1\0", b"\0\0" + varint + b"\1\1\0", b"\0\0\0" + varint + b"\1\0"):
        data = bytes([len(body) * 2]) + body
        same("check_records", data, 0, len(data), 1, 0, -(2**63), 2**63 - 1)
        same("index_records", data, 0, len(data), 1, array("q", bytes(8 * RECORD_FIELDS)))


@pytest.mark.skipif(not imported.COMPILED, reason="the kernel is not compiled on this machine")
def test_the_compiled_module_is_the_one_in_use() -> None:
    assert not imported.__file__.endswith(".py")
