"""A metadata quorum of three voters: `python -m bench.quorum [--lingers MS…] [--writers N…] [--seconds S]`

Metadata changes a second and how long each takes, with `controller.quorum.append.linger.ms` at each of the
given values: three controllers in this process, over real sockets and directories. Each writer has one change
under way; a change is one record. The processor's time is that of all three together.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.support.controllers import TIMING, Broker, Fleet

_WARM_UP_S = 0.5
_BROKER = 7


class Round(NamedTuple):
    """`latencies_ms` are sorted."""

    changes_per_s: float
    latencies_ms: list[float]
    cpu_ms_per_change: float

    def at(self, share: float) -> float:
        return self.latencies_ms[int((len(self.latencies_ms) - 1) * share)]


async def play(folder: Path, linger_ms: int, writers: int, seconds: float) -> Round:
    fleet = Fleet(folder)
    fleet.timing = replace(TIMING, append_linger_ms=linger_ms)
    await fleet.start()
    broker = await Broker(fleet, _BROKER).start()
    active = await fleet.led()
    epoch = active.publisher.image.brokers[_BROKER].epoch
    taken: list[float] = []
    start = time.perf_counter() + _WARM_UP_S

    async def write() -> None:
        while (begun := time.perf_counter()) < start + seconds:
            await active.controller.allocate_producer_ids(_BROKER, epoch)
            if begun >= start:
                taken.append((time.perf_counter() - begun) * 1000)

    async def processor() -> float:
        await asyncio.sleep(_WARM_UP_S)
        before = time.process_time()
        await asyncio.sleep(seconds)
        return time.process_time() - before

    measuring = asyncio.ensure_future(processor())
    await asyncio.gather(measuring, *(write() for _ in range(writers)))
    cpu_s = measuring.result()
    await broker.close()
    await fleet.stop()
    if fleet.failures:
        raise SystemExit(f"a node failed: {fleet.failures[0]}")
    return Round(len(taken) / seconds, sorted(taken), cpu_s * 1000 / max(len(taken), 1))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quorum", description=__doc__)
    parser.add_argument("--lingers", type=int, nargs="+", default=[0, 25], metavar="MS")
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 10, 100], metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is told (default: 3)")
    parser.add_argument("--folder", type=Path, help="where the directories are made")
    chosen = parser.parse_args(arguments)
    print(f"{'writers':>8}{'linger ms':>11}{'changes/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms/change':>15}")
    for writers in chosen.writers:
        rounds: dict[int, list[Round]] = {linger_ms: [] for linger_ms in chosen.lingers}
        for _ in range(chosen.rounds):  # in turn, so that what else goes on meets them all
            for linger_ms, played in rounds.items():
                with tempfile.TemporaryDirectory(prefix="firn-quorum-", dir=chosen.folder) as name:
                    played.append(asyncio.run(play(Path(name), linger_ms, writers, chosen.seconds)))
        for linger_ms, played in rounds.items():
            told = [
                statistics.median(one.changes_per_s for one in played),
                statistics.median(one.at(0.5) for one in played),
                statistics.median(one.at(0.99) for one in played),
                statistics.median(one.cpu_ms_per_change for one in played),
            ]
            print(
                f"{writers:>8}{linger_ms:>11}{told[0]:>11.0f}{told[1]:>9.2f}{told[2]:>9.2f}{told[3]:>15.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
