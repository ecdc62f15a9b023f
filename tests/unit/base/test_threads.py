"""The pool of threads: bounded, in order, and no reason for a process not to end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, wait

import pytest

from service.base.threads import SystemThreads


def test_work_is_done_by_few_threads_and_answers_come_back() -> None:
    with SystemThreads().pool("work", 3) as pool:
        names = {
            future.result()
            for future in [pool.submit(lambda: threading.current_thread().name) for _ in range(50)]
        }
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result()
    assert names <= {"work_0", "work_1", "work_2"}
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def test_threads_are_made_as_they_are_needed() -> None:
    with SystemThreads().pool("few", 10) as pool:
        for _ in range(20):
            pool.submit(int).result()
            wait([pool.submit(int)])
        assert sum(one.name.startswith("few_") for one in threading.enumerate()) <= 3


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_only_threads_of_a_nice_pool_have_a_lower_priority() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority()
    with SystemThreads().pool("nice", 2, nice=3) as pool, SystemThreads().pool("usual", 2) as other:
        assert pool.submit(priority).result() == min(before + 3, 19)
        assert other.submit(priority).result() == priority() == before


def test_a_shutdown_waits_for_what_runs_and_may_cancel_what_does_not() -> None:
    pool = SystemThreads().pool("one", 1)
    go_on, began = threading.Event(), threading.Event()

    def run() -> str:
        began.set()
        go_on.wait(20)
        return "done"

    running = pool.submit(run)
    queued = pool.submit(int)
    assert began.wait(20)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        queued.result()
    go_on.set()
    pool.shutdown()
    assert running.result() == "done"


def test_a_process_ends_while_a_thread_hangs() -> None:
    code = (
        "import time; from service.base.threads import SystemThreads; "
        "pool = SystemThreads().pool('p', 1); pool.submit(time.sleep, 600); "
        "time.sleep(0.1); pool.shutdown(wait=False)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_work_never_waits_for_other_work_while_there_could_be_another_thread() -> None:
    """However the threads before it came to their rest: each of four meets the other three."""
    for number in range(200):
        with SystemThreads().pool("met", 4) as pool:
            for _ in range(number % 7):
                pool.submit(int).result()
            wait([pool.submit(int) for _ in range(number % 4)])
            meeting = threading.Barrier(4)
            wait([pool.submit(int)])
            for met in [pool.submit(meeting.wait, 20) for _ in range(4)]:
                met.result()


def test_a_system_without_threads_to_give_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SystemThreads().pool("poor", 2)
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        pool.submit(int)
    monkeypatch.setattr(threading.Thread, "start", start)
    go_on = threading.Event()
    first = pool.submit(go_on.wait, 20)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = pool.submit(int)  # waits for the thread that there is
    monkeypatch.setattr(threading.Thread, "start", start)
    assert pool.submit(int).result(20) == 0
    assert second.result(20) == 0
    go_on.set()
    assert first.result(20)
    pool.shutdown()
