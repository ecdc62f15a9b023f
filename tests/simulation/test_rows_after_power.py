"""Rows of aborted transactions across a kill and, after the next start, a loss of power.

What a killed process wrote is read by the next one, and is on no medium yet: before the recovery point passes
it, it has to be flushed again.
"""

from __future__ import annotations

from random import Random

from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.records.txn_rows import AbortedEntry
from simulator.power_loss import Loss, Platter
from tests.simulation.test_disk_and_network import ROOT, disk_of, platter
from tests.unit.hot.logs import START_MS, TIP
from tests.unit.hot.transactional import abort, plain, send


def opened(medium: Platter, recovery_point: int = 0) -> LocalLog:
    """The log in a new process."""
    disk, _ = disk_of(medium)
    world = World(ManualClock(START_MS), disk, SystemThreads(), Random(1))
    return LocalLog.open(
        ROOT / "events-0", TIP, LogConfig(), world=world, recovery_point=recovery_point, clean=False
    )


def flushed_without_power(medium: Platter, log: LocalLog) -> LocalLog:
    """The log after a flush and a loss of power, which takes all that is not on the medium.

    Its segments are below the recovery point then, so that their indexes are believed.
    """
    log.appender.roll()
    plain(log)
    log.durability.note_created()
    log.durability.flush()
    recovery_point = log.recovery_point
    log.close(clean=False)
    medium.lose_power(Random(1), Loss.ALL)
    return opened(medium, recovery_point)


def test_a_row_of_a_killed_process_is_flushed_by_the_next() -> None:
    medium = platter()
    log = opened(medium)
    plain(log)
    send(log, 5, 0)
    abort(log, 5)
    log.close(clean=False)
    log = flushed_without_power(medium, opened(medium))
    assert log.log_end_offset == 4
    assert log.aborted_transactions(0, 4) == [AbortedEntry(5, 1, 2, 3)]
    log.close(clean=False)


def test_a_row_that_a_killed_process_has_cut_stays_away() -> None:
    medium = platter()
    log = opened(medium)
    plain(log)
    send(log, 5, 0)
    abort(log, 5)
    log = flushed_without_power(medium, log)
    assert log.aborted_transactions(0, 3) == [AbortedEntry(5, 1, 2, 3)]
    log.truncation.truncate_to(1)
    log.close(clean=False)
    log = opened(medium)
    plain(log, 5)
    log = flushed_without_power(medium, log)
    assert log.log_end_offset == 7
    assert log.aborted_transactions(0, 7) == []
    log.close(clean=False)
