"""A process that appends to a log as fast as it can and says what it has acknowledged, until it is killed.

`python -m tests.property.hot.appender DIRECTORY SEED` prints producer, sequence, first and last offset of
each append.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from service.base.world import system_world
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from tests.unit.hot.logs import TIP, batch, get_or_create

SETTINGS = LogConfig(
    segment_bytes=4000, index_interval_bytes=300, retention_bytes=40_000, file_delete_delay_ms=0
)


async def append_for_ever(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = system_world()
    clock = world.clock
    logs = LogManager([directory], world, checkpoint_interval_ms=20)
    await logs.open_all(lambda _: SETTINGS)
    log = get_or_create(logs, TIP, SETTINGS)
    background = asyncio.create_task(logs.run())
    epoch = log.epochs.latest + 1
    while not background.done():
        _append(log, rng, epoch, clock.now_ms())
        if rng.random() < 0.05:
            log.deletion.apply_retention(clock.now_ms())
        if rng.random() < 0.05:
            await logs.flush(log)
        if rng.random() < 0.1:
            await asyncio.sleep(0)
    background.result()


def _append(log: LocalLog, rng: random.Random, epoch: int, now_ms: int) -> None:
    producer = rng.randrange(3)
    entry = log.producers.get(producer)
    sequence = entry.last_sequence + 1 if entry is not None else 0
    one = batch(rng.randint(1, 9), timestamp=now_ms, producer_id=producer, epoch=0, sequence=sequence)
    info = log.append(one, epoch, now_ms)
    sys.stdout.write(f"{producer} {sequence} {info.first_offset} {info.last_offset}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(append_for_ever(Path(sys.argv[1]), int(sys.argv[2])))
