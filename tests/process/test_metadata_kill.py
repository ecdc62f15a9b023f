"""Answered changes of the controller survive kill -9 at any moment."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.metadata.test_recovery import image_of

CHILD = """
import asyncio, sys
from pathlib import Path
from tests.unit.metadata.controllers import create, join, running

async def main():
    async with running(Path(sys.argv[1]), snapshot_max_bytes=4000) as controller:
        await join(controller)
        for i in range(100_000):
            names = [f"t{i}-{j}" for j in range(4)]
            await asyncio.gather(*(create(controller, name, 2) for name in names))
            print(*names, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("answered", [1, 5, 12, 40])
def test_answered_changes_survive_kill_9(tmp_path: Path, answered: int) -> None:
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    names: list[str] = []
    for _ in range(answered):
        names += child.stdout.readline().split()
    child.send_signal(signal.SIGKILL)
    names += child.stdout.read().split()[:-4]
    child.stdout.close()
    child.wait()
    assert len(names) >= answered
    image = asyncio.run(image_of(tmp_path))
    assert set(names) <= set(image.topics_by_name)
    for topic in image.topics_by_name.values():
        assert len(topic.partitions) == 2, "a batch counts wholly or not at all"
