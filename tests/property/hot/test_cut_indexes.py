"""A time index that lost entries is noticed: searches by time answer as a walk over all records does."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from service.hot.log import LocalLog
from service.records.segment_indexes import TIME_ENTRY
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, open_log

BATCHES = 40


def timestamps(random: Random) -> list[int]:
    """Of each batch: rising, wandering or absent (-1), as clients have them."""
    kind = random.choice(("rising", "wandering", "absent first", "mixed"))
    found = []
    for n in range(BATCHES):
        at = START_MS + (10 * n if kind in ("rising", "absent first") else random.randrange(10 * BATCHES))
        is_absent = (kind == "absent first" and n < BATCHES // 2) or (
            kind == "mixed" and random.random() < 0.4
        )
        found.append(-1 if is_absent else at)
    return found


def opened(folder: Path) -> LocalLog:
    return open_log(
        folder, world=make_world(), index_interval_bytes=200, clean=True, recovery_point=BATCHES + 1
    )


def expected(times: list[int], timestamp: int) -> int | None:
    return next((offset for offset, at in enumerate(times) if at >= timestamp), None)


@pytest.mark.parametrize("seed", range(12))
def test_searches_by_time_find_what_is_there_whatever_prefix_of_the_index_is_left(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    times = timestamps(random)
    log = open_log(tmp_path / "whole", world=make_world(), index_interval_bytes=200)
    for at in times:
        log.append(batch(1, timestamp=at), 0, START_MS)
    log.appender.roll()
    log.append(batch(1, timestamp=START_MS + 100_000), 0, START_MS)
    log.close()
    [index] = sorted((tmp_path / "whole").rglob(f"{0:020d}.timeindex"))
    entries = index.stat().st_size // TIME_ENTRY.size
    asked = [START_MS, *(at + delta for at in times if at >= 0 for delta in (-1, 0, 1))]
    for left in range(entries + 1):
        shutil.copytree(tmp_path / "whole", tmp_path / f"cut-{left}")
        cut = tmp_path / f"cut-{left}" / index.relative_to(tmp_path / "whole")
        cut.write_bytes(index.read_bytes()[: left * TIME_ENTRY.size])
        log = opened(tmp_path / f"cut-{left}")
        for timestamp in asked:
            found = log.offset_for_timestamp(timestamp)
            wanted = expected([*times, START_MS + 100_000], timestamp)
            told = None if found is None else found.offset
            assert told == wanted, f"seed {seed}, {left} of {entries} entries"
        log.close()
