"""Validating at once, in slices or on a thread comes to the same: the same batch, the same refusal."""

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.records.batch import CompressionType
from service.records.validation import (
    BeyondSlice,
    InflationBudget,
    RecordsRefused,
    ValidationRules,
    validate_produced,
)
from tests.support.built_batches import build_batch

NOW = 1_700_000_000_000
MOST = st.sampled_from([1, 100, 1_000, 1 << 20])
rules_of = st.builds(
    ValidationRules,
    log_append_time=st.booleans(),
    timestamp_after_max_ms=st.sampled_from([0, 3_600_000]),
    compression_type=st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    max_inflated_bytes=st.sampled_from([64, 1 << 16]),
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    rows = draw(st.lists(st.tuples(st.integers(NOW - 9, NOW + 9), st.binary(max_size=40)), min_size=1))
    data = bytearray(
        build_batch([(at, None, value) for at, value in rows], codec=draw(st.sampled_from(CompressionType)))
    )
    for at in draw(st.lists(st.integers(21, len(data) - 1), max_size=1)):
        data[at] ^= 1
    return bytes(data)


def outcome(validate: Callable[[], object]) -> object:
    try:
        batch = validate()
    except RequestError as e:
        return e.code, e.message, e.record_errors if isinstance(e, RecordsRefused) else ()
    return (bytes(batch[0]), *batch[1:])  # type: ignore[index]


@given(data=batches(), rules=rules_of, most=MOST)
@settings(deadline=None)
def test_a_batch_that_is_left_to_a_thread_is_untouched_and_judged_as_it_would_have_been(
    data: bytes, rules: ValidationRules, most: int
) -> None:
    expected = outcome(lambda: validate_produced(bytearray(data), rules, NOW))
    object.__setattr__(rules, "at_once_bytes", (most,) * 8)  # slices of any length
    sent = bytearray(data)
    inflation = InflationBudget(1 << 20)
    try:
        found = outcome(lambda: validate_produced(sent, rules, NOW, inflation, True))
    except BeyondSlice:
        assert sent == data
        assert inflation.left_bytes == 1 << 20
        found = outcome(lambda: validate_produced(sent, rules, NOW, inflation))
    assert found == expected


@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from(list(CompressionType)[1:])), min_size=2),
    st.integers(0, 900),
)
@settings(deadline=None)
def test_the_batches_of_a_request_inflate_to_its_budget_and_no_further(
    sizes: list[tuple[int, CompressionType]], budget: int
) -> None:
    rules, inflation = ValidationRules(), InflationBudget(budget)
    inflated = 0
    for size, codec in sizes:
        data = bytearray(build_batch([(NOW, None, bytes(size))], codec=codec))
        room = inflation.left_bytes
        found = outcome(partial(validate_produced, data, rules, NOW, inflation))
        if isinstance(found, tuple) and found[0] is ErrorCode.message_too_large:
            assert room < size + 20  # a record has a few bytes of its own
        else:
            inflated += room - inflation.left_bytes
            assert room - inflation.left_bytes > size
    assert inflated <= budget
