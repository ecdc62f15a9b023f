"""Rows as in `bench.nasty`: effects of the store, the disk and readers of the archive on all others."""

from __future__ import annotations

import time
import uuid

from bench import load
from bench.stage import Act, Stage, produce_each, produce_to_all, read_cold
from tests.support.batches import batch
from tests.support.faults import Fault
from tests.support.processes import wait_until
from tests.support.tiers import EARLIEST_LOCAL, offset
from tests.support.wire import encode_request


def store_denied(stage: Stage) -> Act:
    _kept(stage)

    def act() -> None:
        time.sleep(stage.of(60))

    return act


def store_hangs(stage: Stage) -> Act:
    """Nothing of what is asked of the store is answered."""
    _kept(stage)
    proxy = stage.proxy
    assert proxy is not None
    proxy.mode = Fault.PASS
    time.sleep(3)

    def act() -> None:
        proxy.mode = Fault.HANG
        time.sleep(stage.of(60))

    return act


def _kept(stage: Stage) -> None:
    """500 partitions of 15 segments that the store does not take."""
    assert stage.proxy is not None
    partitions, segments = stage.of(500), 15
    stage.create(["kept"], partitions, remote_storage_enable="true", internal_segment_bytes="100")
    stage.proxy.mode = Fault.UNKNOWN_KEY
    wait_until("appends", lambda: _all_taken(stage, partitions), seconds=120, every=0.5)
    for _ in range(segments):
        assert _all_taken(stage, partitions)


def _all_taken(stage: Stage, partitions: int) -> bool:
    answer = stage.call(produce_to_all("kept", range(partitions), batch([bytes(30)])))
    return all(one.error_code == 0 for one in answer.responses[0].partition_responses)


def sweep(stage: Stage) -> Act:
    assert stage.store is not None
    topics = stage.of(4000)
    for at in range(0, topics, 500):
        stage.create(
            [f"swept-{n}" for n in range(at, min(at + 500, topics))], 1, remote_storage_enable="true"
        )
    root = stage.folder / "bucket" / "data"
    for _ in range(stage.of(20)):
        folder = root / str(uuid.uuid4()) / "0"
        folder.mkdir(parents=True)
        for number in range(1000):
            (folder / f"{number:020}-{number:020}-{1:010}-{uuid.uuid4()}.seg").touch()

    def act() -> str:
        time.sleep(13)
        return "every 10 s"

    return act


def manifests(stage: Stage) -> Act:
    """A thousand segments of a partition in the bucket, read by a node that has no manifest yet."""
    segments, partitions = stage.of(1000), 1
    stage.create(
        ["archived"], partitions, remote_storage_enable="true", internal_segment_bytes="100",
        local_retention_bytes="1",
    )  # fmt: skip
    frame = encode_request(produce_to_all("archived", range(partitions), batch([bytes(30)])))
    produce_each(stage.bootstrap, [frame] * segments)
    wait_until(
        "offload",
        lambda: all(
            offset(stage.bootstrap, "archived", one, EARLIEST_LOCAL) >= segments - 2
            for one in range(partitions)
        ),
        seconds=900,
        every=1,
    )
    stage.node.restart()

    def act() -> None:
        for partition in range(partitions):
            read_cold(stage.bootstrap, "archived", partition, [0, segments // 2, segments - 3])

    return act


def dead_connection(stage: Stage) -> Act:
    assert stage.proxy is not None
    stage.create(
        ["archived"],
        1,
        remote_storage_enable="true",
        segment_bytes=str(1 << 20),
        local_retention_bytes="1",
    )
    load.fill(stage.bootstrap, "archived", 5)
    wait_until("offload", lambda: offset(stage.bootstrap, "archived", 0, EARLIEST_LOCAL) > 1000, seconds=60)
    stage.node.restart()
    proxy = stage.proxy

    def act() -> str:
        # The connection of the first read says nothing more; those that come after it work.
        hung = iter(range(1))
        proxy.mode = Fault.HANG
        proxy.plan = lambda seen: (
            Fault.HANG if seen.method == "GET" and next(hung, None) is not None else Fault.PASS
        )
        started = time.monotonic()
        try:
            read_cold(stage.bootstrap, "archived", 0, [0], patience_s=130)
        except AssertionError:
            return "no answer to the read in 130 s"
        finally:
            proxy.plan, proxy.mode = None, Fault.PASS
        return f"the read took {time.monotonic() - started:.1f} s"

    return act
