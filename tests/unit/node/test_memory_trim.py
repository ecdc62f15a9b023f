"""Memory that a burst of requests leaves free is returned to the system, once, after the burst."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from service.node.memory_trim import MemoryTrimmer

MIB = 1 << 20


class AtOnce(Executor):
    """Does what it is given in place."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Process:
    """A process that holds so much, of which so much is free."""

    def __init__(self) -> None:
        self.held, self.free, self.slices, self.trims = 60 * MIB, 0, 0, 0
        self.blocks = 1_000_000
        self.used = 40 * MIB
        self.memory = MemoryTrimmer(
            lambda: self.held,
            self.trim,
            AtOnce(),
            lambda: self.slices,
            lambda: self.blocks,
            lambda: self.used,
        )

    def trim(self) -> None:
        self.trims += 1
        self.held, self.free = self.held - self.free, 0

    def burst(self, size: int) -> None:
        self.held += size
        self.slices += 100
        self.memory.check()
        self.free += size


def test_free_memory_of_a_burst_is_trimmed_after_it() -> None:
    process = Process()
    process.memory.check()
    process.burst(200 * MIB)
    assert process.trims == 0, "the burst is not over"
    process.memory.check()
    assert process.trims == 1
    assert process.held == 60 * MIB


def test_memory_in_use_is_not_trimmed_repeatedly() -> None:
    process = Process()
    process.memory.check()
    process.held += 100 * MIB
    for _ in range(60):
        process.memory.check()
    assert process.trims == 1


def test_the_next_burst_is_given_back_as_well() -> None:
    process = Process()
    process.memory.check()
    for number in range(1, 4):
        process.burst(100 * MIB)
        for _ in range(12):
            process.memory.check()
        assert process.trims == number
        assert process.held == 60 * MIB


def test_a_try_while_all_was_in_use_is_not_the_last_one() -> None:
    """The burst waits for a moment, and is answered then."""
    process = Process()
    process.memory.check()
    process.held += 200 * MIB
    process.slices += 100
    for _ in range(8):
        process.memory.check()
    assert (process.trims, process.held) == (1, 260 * MIB)
    process.free, process.slices = 200 * MIB, 200
    for _ in range(8):
        process.memory.check()
    assert (process.trims, process.held) == (2, 60 * MIB)


def test_memory_freed_while_idle_is_trimmed() -> None:
    """The clients have gone, and what was read for them with them."""
    process = Process()
    process.memory.check()
    process.held, process.blocks = 260 * MIB, 3_000_000
    for _ in range(8):
        process.memory.check()
    process.free, process.blocks = 200 * MIB, 1_000_000
    for _ in range(8):
        process.memory.check()
    assert (process.trims, process.held) == (2, 60 * MIB)


def test_memory_of_large_buffers_is_trimmed_after_them() -> None:
    """They are few blocks, and no long work: the try came in the middle of them, and most of it went by
    itself."""
    process = Process()
    process.memory.check()
    process.held += 340 * MIB
    for _ in range(8):
        process.memory.check()
    assert process.trims == 1
    process.held, process.free = 140 * MIB, 80 * MIB
    for _ in range(8):
        process.memory.check()
    assert (process.trims, process.held) == (2, 60 * MIB)


def test_memory_that_the_heap_keeps_is_trimmed_after_large_buffers() -> None:
    """The try came in the middle of them, and none of it went by itself."""
    process = Process()
    process.memory.check()
    process.held, process.used = 260 * MIB, 240 * MIB
    for _ in range(8):
        process.memory.check()
    assert process.trims == 1
    process.free, process.used = 200 * MIB, 40 * MIB
    for _ in range(8):
        process.memory.check()
    assert (process.trims, process.held) == (2, 60 * MIB)


def test_a_trim_that_leaves_much_is_not_repeated_for_the_same_buffers() -> None:
    process = Process()
    process.memory.check()
    process.held, process.used = 260 * MIB, 240 * MIB
    for _ in range(8):
        process.memory.check()
    process.used = 40 * MIB  # what they have left lies between pieces in use
    for _ in range(60):
        process.memory.check()
    assert process.trims == 2


def test_memory_is_trimmed_under_a_load_that_never_pauses() -> None:
    """Each second has a long request, which leaves half a megabyte between pieces in use."""
    process = Process()
    process.memory.check()
    most = 0
    for _ in range(600):
        process.held, process.free = process.held + MIB // 2, process.free + MIB // 2
        process.slices += 1
        process.memory.check()
        most = max(most, process.held)
    assert most < 60 * MIB + 40 * MIB
    assert process.trims <= 600 // 30
    process.free, process.used = 0, 240 * MIB  # what it has now is in use
    process.held += 200 * MIB
    trims = process.trims
    for _ in range(600):
        process.slices += 1
        process.memory.check()
    assert process.trims <= trims + 1
