"""`kill -9` at any moment: the log opens, and everything that was acknowledged is there."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

from service.base.world import system_world
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from tests.property.hot.appender import SETTINGS
from tests.unit.hot.logs import TIP, batch, headers_from

REPOSITORY = Path(__file__).parents[3]
ROUNDS = 8


def run_and_kill(directory: Path, seed: int, seconds: float) -> list[tuple[int, int, int, int]]:
    """What the appender acknowledged before its end: (producer, sequence, first offset, last offset)."""
    command = [sys.executable, "-m", "tests.property.hot.appender", str(directory), str(seed)]
    child = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert child.stdout is not None
    assert child.stderr is not None
    first = child.stdout.readline()
    time.sleep(seconds)
    alive = child.poll() is None
    child.kill()
    output, errors = child.communicate()
    assert alive, errors.decode()
    lines = (first + output).decode().split("\n")[:-1]  # the last line may be cut: it is not acknowledged
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in (line.split() for line in lines)]


def check(log: LocalLog, acknowledged: list[tuple[int, int, int, int]]) -> None:
    found = {h.base_offset: h for h in headers_from(log, log.log_start_offset)}
    offset = log.log_start_offset
    for header in found.values():
        assert header.base_offset <= offset < header.next_offset, "no gap"
        offset = header.next_offset
    assert offset == log.log_end_offset
    for producer, sequence, base, last in acknowledged:
        if last >= log.log_start_offset:
            header = found[base]
            assert (header.producer_id, header.base_sequence, header.last_offset) == (
                producer,
                sequence,
                last,
            )
    assert log.log_end_offset > acknowledged[-1][3]
    for producer, sequence, base, last in acknowledged[-1:]:
        again = batch(last - base + 1, producer_id=producer, epoch=0, sequence=sequence)
        info = log.append(again, log.epochs.latest, 0)
        assert (info.duplicate, info.first_offset) == (True, base)


def test_no_acknowledged_record_is_lost_to_a_kill(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        acknowledged = run_and_kill(tmp_path, rng.randrange(1 << 30), rng.uniform(0, 0.25))
        logs = LogManager([tmp_path], system_world())
        asyncio.run(logs.open_all(lambda _: SETTINGS))
        log = logs.get(TIP.topic_id, TIP.partition)
        assert log is not None
        check(log, acknowledged)
        asyncio.run(logs.close(clean=rng.random() < 0.3))
