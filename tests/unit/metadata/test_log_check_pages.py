"""The check of the metadata log after a loss of power that kept any of the pages behind the durable end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.base.disk import SystemDisk
from service.base.errors import CorruptionError
from service.hot import names
from service.metadata.raft.log_check import Durable, check_log
from service.records.builder import BatchBuilder

PAGE = 4096
SEEDS = range(440, 540)


def batch(offset: int, size: int, rng: random.Random) -> bytes:
    """Return a batch of one record or of several, of about `size` bytes."""
    records = rng.choice((1, 1, 2, 5)) if size > 200 else 1
    for less in range(12):
        builder = BatchBuilder(offset, leader_epoch=1)
        each = max((size - 61) // records - 8 - less, 1)
        for _ in range(records):
            builder.add(1000, None, rng.randbytes(each))
        made = bytes(builder.build())
        if records > 1 or len(made) <= size:
            break
    return made


def log(rng: random.Random) -> tuple[int, bytes, list[tuple[int, int, int]]]:
    """Return base offset, bytes, and (position, end, base offset) of each batch."""
    base = rng.choice((0, 0, 100, 250, 60_000, 65_500, 3_000_000, 2**24 - 3, 2**33))
    data, offset, places = b"", base, list[tuple[int, int, int]]()
    for _ in range(rng.randint(2, 12)):
        size = int(70 * (20_000 / 70) ** rng.random())
        if rng.random() < 0.5:  # let it end near a border of pages
            size = max(70, PAGE * rng.randint(1, 4) - len(data) % PAGE + rng.randint(-24, 24))
        made = batch(offset, size, rng)
        places.append((len(data), len(data) + len(made), offset))
        data += made
        offset += int.from_bytes(made[23:27], "big") + 1
    places.append((len(data), len(data), offset))
    return base, data, places


def survivors(data: bytes, end: int, rng: random.Random) -> tuple[bytes, list[int]]:
    """Return what a loss of power leaves, and the pages lost. `end`: what was durable."""
    left, lost = bytearray(data), list[int]()
    likely = rng.choice((0.1, 0.3, 0.6))
    for page in range(end // PAGE, len(data) // PAGE + 1):
        if rng.random() < likely:
            start, stop = max(page * PAGE, end), min(page * PAGE + PAGE, len(data))
            if start < stop:
                left[start:stop] = bytes(stop - start)
                lost.append(page)
    size = rng.choice((len(data), len(data), rng.randint(end, len(data)), end))
    if rng.random() < 0.2:
        size = max(end, min(len(data), size // PAGE * PAGE))
    return bytes(left[:size]), lost


def write(tmp_path: Path, base: int, data: bytes) -> Path:
    path = tmp_path / names.offset_file(base, names.LOG)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_pages_are_a_torn_tail(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    base, data, places = log(rng)
    durable = rng.choice(places)
    left, lost = survivors(data, durable[0], rng)
    path = write(tmp_path, base, left)
    told = f"seed {seed}, durable {durable}, lost pages {lost}, size {len(left)}, batches {places}"
    exact = Durable(base, durable[2], is_exact=True, epoch=1)
    try:
        end = check_log(SystemDisk(), tmp_path, exact)
    except CorruptionError as e:
        pytest.fail(f"{told}: refused: {e}")
    kept = path.read_bytes()
    assert end.offset >= durable[2], told
    assert data.startswith(kept), told
    assert len(kept) == next(at for at, _, offset in places if offset == end.offset), told
    whole = next((at for at, stop, _ in places if left[at:stop] != data[at:stop]), len(data))
    assert len(kept) == min(whole, len(data)), told


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_before_a_valid_batch_is_damage(tmp_path: Path, seed: int) -> None:
    """A bit of a batch that no loss touched, in front of a batch that is whole."""
    rng = random.Random(seed)
    base, data, places = log(rng)
    durable = rng.randrange(len(places))
    left, lost = survivors(data, places[durable][0], rng)
    sound = [at for at, (start, stop, _) in enumerate(places[:-1]) if left[start:stop] == data[start:stop]]
    # The first one that is hit is in front of all losses, so it is what the check meets first.
    first_bad = next((at for at in range(len(places) - 1) if at not in sound), len(places) - 1)
    pairs = [at for at in sound if at + 1 in sound and at < first_bad]
    if not pairs:
        return
    hit = rng.choice(pairs)
    start, stop, _ = places[hit]
    bit = rng.randrange(8 * (stop - start))
    if rng.random() < 0.4:
        bit = rng.randrange(8 * 61)
    damaged = bytearray(left)
    damaged[start + bit // 8] ^= 1 << bit % 8
    write(tmp_path, base, bytes(damaged))
    told = f"seed {seed}, batch {hit} at {start}, bit {bit}, durable {places[durable]}, lost {lost}, {places}"
    exact = Durable(base, places[durable][2], is_exact=True, epoch=1)
    if 12 * 8 <= bit < 16 * 8:  # the leader epoch is covered by no checksum
        return
    try:
        end = check_log(SystemDisk(), tmp_path, exact)
    except CorruptionError:
        return
    pytest.fail(f"{told}: cut at {end}")


def sized(offset: int, size: int) -> bytes:
    """Return a batch of one record, of exactly `size` bytes."""
    for value in range(size - 61, 0, -1):
        builder = BatchBuilder(offset, leader_epoch=1)
        builder.add(1000, None, b"\xa5" * value)
        made = bytes(builder.build())
        if len(made) == size:
            return made
    raise AssertionError("no such size")


def check_after_loss(
    tmp_path: Path,
    base: int,
    batches: list[bytes],
    durable: int,
    pages: list[int],
    is_acknowledged: bool = True,
) -> None:
    """Check what a loss of these pages leaves; `durable`: number of batches that were flushed."""
    data = b"".join(batches)
    end = sum(map(len, batches[:durable]))
    left = bytearray(data)
    for page in pages:
        start, stop = max(page * PAGE, end), min(page * PAGE + PAGE, len(data))
        left[start:stop] = bytes(stop - start)
    path = write(tmp_path, base, bytes(left))
    exact = Durable(base, base + durable, is_exact=True, epoch=1, is_acknowledged=is_acknowledged)
    found = check_log(SystemDisk(), tmp_path, exact)
    assert data[:end] == path.read_bytes()[:end]
    assert found.offset >= base + durable


@pytest.mark.parametrize("is_acknowledged", [True, False])
@pytest.mark.parametrize(("base", "before"), [(0, 8), (300, 8), (300, 7), (70_000, 6)])
def test_a_lost_page_that_held_only_the_first_bytes_of_a_batch(
    tmp_path: Path, base: int, before: int, is_acknowledged: bool
) -> None:
    """The rest of the batch is on the disk: with another base offset, which no checksum covers."""
    batches = [sized(base, PAGE - before), sized(base + 1, 2000), sized(base + 2, 100)]
    check_after_loss(tmp_path, base, batches, 1, [0], is_acknowledged)


@pytest.mark.parametrize(("offset", "before"), [(100, 7), (100, 1), (70_000, 5)])
def test_a_lost_page_in_whose_last_bytes_the_next_batch_begins(
    tmp_path: Path, offset: int, before: int
) -> None:
    """Those bytes of the next batch are zeros anyway, so that it is whole."""
    batches = [sized(offset, 200), sized(offset + 1, 2 * PAGE - before - 200), sized(offset + 2, 100)]
    check_after_loss(tmp_path, offset, batches, 1, [1])
