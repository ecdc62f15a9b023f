"""Erasures and key filters of batches that no client should write, against a model that shares nothing with
them. `make fuzz` does it many times: `python -m tests.property.records.test_hostile_copies LOGS SEED`."""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.records.erasure import count_hits, filter_hash, hash_key
from service.records.kernel_status import Status
from service.records.scan import scan_batches
from service.remote.format.key_filter import KeyFilter, KeyFilterBuilder, LeastTimestamps
from tests.property.records.test_erasure_parity import LIVES as ERASURES
from tests.property.records.test_erasure_parity import run
from tests.property.records.test_filter_parity import LIVES as FILTERS
from tests.property.records.test_filter_parity import walked
from tests.support.erasure import SECRET, erased, erasure_keys
from tests.support.hostile_batches import (
    CONTROL,
    GONE,
    SIZE,
    batches_of,
    fields_of,
    inflated,
    keys_of,
    left_of,
    some_log,
)

BOUND = 1 << 20


def check_erasure(log: bytes, random: Random) -> str:
    """Erase keys from a log, as the model does; return what became of it."""
    batches = batches_of(log)
    keys = [key for key in GONE if random.random() < 0.7]
    end_offset = random.choice((2**62, fields_of(batches[-1]).base_offset + 2, 0))
    before_ms = random.choice((-1, -1, 0, 1_700_000_000_003))
    try:
        wanted = [left_of(batch, keys, end_offset, before_ms) for batch in batches]
    except Exception:  # `Broken`, or what a codec of another library raises
        wanted = None
    order, found = erasure_keys(keys, before_ms), scan_batches(log)
    assert (found.status, found.end) == (Status.OK, len(log))
    try:
        out = erased(log, order, end_offset, keeps_all=True, buffer_bytes=random.choice((61, 200, 4096)))
        hits = count_hits(order, memoryview(log), found, end_offset)
    except CorruptionError:
        assert wanted is None
        return "broken"
    assert wanted is not None
    assert hits == sum(gone for _, _, gone in wanted)
    assert scan_batches(out).status == Status.OK
    for before, after, (fields, payload, gone) in zip(batches, batches_of(out), wanted, strict=True):
        if not gone:
            assert after == before
            continue
        written = fields_of(after)
        assert written._replace(length=0, crc=0) == fields._replace(length=0, crc=0)
        assert inflated(written.attributes & 7, after[SIZE:]) == payload
    return "erased" if hits else "untouched"


def check_filter(log: bytes, random: Random) -> str:
    """Make the filter of a log; each key that a reader finds is in it."""
    found, batches = scan_batches(log), batches_of(log)
    builder = KeyFilterBuilder(len(log), random.choice((1, 1 << 20)), BOUND)
    least = builder.add(memoryview(log), found)
    assert least == LeastTimestamps(BOUND).add(memoryview(log), found)
    section = builder.finish()
    keys, is_sound = keys_of(batches)
    if section:
        known = KeyFilter.open(section)
        assert all(known.may_have(filter_hash(key)) for key in keys)
    elif keys:
        assert builder.keyed_record_count is None
    if is_sound:
        has_zipped_marker = any(fields_of(one).attributes & 7 and is_marker(one) for one in batches)
        assert builder.keyed_record_count == (None if has_zipped_marker else len(keys))
    return "no filter" if builder.keyed_record_count is None else "filter" if section else "no keys"


def is_marker(batch: bytes) -> bool:
    return fields_of(batch).attributes & CONTROL != 0 and fields_of(batch).record_count > 0


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_an_erasure_leaves_what_the_model_leaves(seed: int) -> None:
    random = Random(seed)
    check_erasure(some_log(random), random)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_a_filter_has_each_key_that_a_reader_finds(seed: int) -> None:
    random = Random(seed)
    check_filter(some_log(random), random)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_all_lives_answer_alike(seed: int) -> None:
    log = some_log(Random(seed))
    hashes = b"".join(hash_key(SECRET, key) for key in GONE)
    first, *others = (run(life, log, hashes, 2**62, 4096, 64, -1) for life in ERASURES)
    assert others == [first] * len(others)
    first, *others = (walked(life, log, 16, 64) for life in FILTERS)
    assert others == [first] * len(others)


def test_the_model_sees_every_kind() -> None:
    """Logs that are broken, erased and untouched, with and without filters: none is seldom."""
    seen: Counter[str] = Counter()
    for seed in range(1500):
        random = Random(seed)
        log = some_log(random)
        seen.update((check_erasure(log, random), check_filter(log, random)))
    assert min(seen.values()) > 20, seen
    assert set(seen) == {"broken", "erased", "untouched", "no filter", "filter", "no keys"}


def main(logs: int, seed: int) -> int:
    seen: Counter[str] = Counter()
    for number in range(logs):
        random = Random(seed * 1_000_003 + number)
        log = some_log(random)
        try:
            seen.update((check_erasure(log, random), check_filter(log, random)))
        except Exception:
            print(f"log {number} of seed {seed}: {log.hex()}", file=sys.stderr)
            raise
    print(f"{logs} hostile logs: {dict(seen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
