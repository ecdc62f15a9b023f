"""Virtual time, greenlets for threads: the same seed is the same order."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from simulator.loop import Loop, Stuck
from simulator.process import Process
from simulator.threads import SimThreads


def world(seed: int = 1) -> tuple[Loop, Process, SimThreads]:
    loop = Loop(Random(seed))
    process = Process("node")
    return loop, process, SimThreads(loop, process, Random(seed + 1))


def run(loop: Loop, process: Process, main: Any) -> Any:
    try:
        return loop.run_until_complete(process.run(lambda: loop.create_task(main)))
    finally:
        loop.close()


def test_an_hour_of_sleep_takes_no_time() -> None:
    loop, process, _ = world()

    async def main() -> float:
        await asyncio.sleep(3600)
        async with asyncio.timeout(10):
            await asyncio.sleep(5)
        return loop.time()

    assert run(loop, process, main()) == 3605


def test_a_task_that_waits_for_ever_is_reported() -> None:
    loop, process, _ = world()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        run(loop, process, main())


def test_threads_of_a_pool_run_beside_the_loop_and_each_other() -> None:
    def story(seed: int) -> list[str]:
        loop, process, threads = world(seed)
        told: list[str] = []
        lock = threads.lock()

        def job(name: str) -> str:
            for step in range(3):
                threads.sleep(0.01)
                with lock:
                    told.append(f"{name}{step}")
                    threads.sleep(0.005)
                    told.append(f"{name}{step}.")
            return name

        async def main() -> None:
            pool = threads.pool("p", 2)
            jobs = [loop.run_in_executor(pool, job, name) for name in "abc"]
            await asyncio.sleep(0.02)
            told.append("loop")
            assert await asyncio.gather(*jobs) == ["a", "b", "c"]
            with lock:  # on the loop, too
                told.append("end")
            pool.shutdown()

        run(loop, process, main())
        return told

    assert story(1) == story(1)
    assert len({tuple(story(seed)) for seed in range(20)}) > 1
    for seed in range(20):
        told = [item for item in story(seed) if item not in ("loop", "end")]
        assert all(told[i + 1] == told[i] + "." for i in range(0, len(told), 2))


def test_the_loop_blocks_for_a_lock_that_a_thread_holds_and_threads_alone_go_on() -> None:
    loop, process, threads = world()
    lock = threads.lock()
    told: list[str] = []

    def job() -> None:
        with lock:
            threads.sleep(1.0)
            told.append("job")

    async def main() -> None:
        loop.call_later(0.9, told.append, "timer")
        done = loop.run_in_executor(threads.pool("p", 1), job)
        await asyncio.sleep(0.5)
        with lock:
            told.append("loop")
        await done
        await asyncio.sleep(0.1)

    run(loop, process, main())
    assert told == ["job", "loop", "timer"]


def test_conditions_are_notified_or_time_out() -> None:
    loop, process, threads = world()
    condition = threads.condition()
    box: list[int] = []

    def consume() -> tuple[bool, bool]:
        with condition:
            got = condition.wait_for(lambda: bool(box), 5)
            late = condition.wait(2)
        return got, late

    def produce() -> None:
        threads.sleep(1)
        with condition:
            box.append(1)
            condition.notify_all()

    async def main() -> tuple[bool, bool]:
        pool = threads.pool("p", 2)
        answer: Any = loop.run_in_executor(pool, consume)
        await loop.run_in_executor(pool, produce)
        found: tuple[bool, bool] = await answer
        assert 3 <= loop.time() < 3.1
        return found

    assert run(loop, process, main()) == (True, False)


def test_a_job_that_is_waited_for_by_another_comes_to_its_end() -> None:
    loop, process, threads = world()

    async def main() -> int:
        pool = threads.pool("p", 2)

        def outer() -> int:
            inner = pool.submit(lambda: 7)
            result: int = inner.result()
            return result

        found: int = await loop.run_in_executor(pool, outer)
        return found

    assert run(loop, process, main()) == 7


def test_a_killed_process_is_never_heard_of_again_and_a_stopped_one_goes_on() -> None:
    loop, process, threads = world()
    told: list[str] = []
    pool = threads.pool("p", 1)

    async def live() -> None:
        def job() -> None:
            try:
                for _ in range(10):
                    threads.sleep(1)
                    told.append(f"job {loop.time():.0f}")
            finally:
                told.append("finally")

        loop.run_in_executor(pool, job)
        try:
            while True:
                await asyncio.sleep(1)
                told.append(f"task {loop.time():.0f}")
        finally:
            told.append("finally")

    async def main() -> list[str]:
        task = process.run(lambda: loop.create_task(live()))
        await asyncio.sleep(2.5)
        process.stop()
        await asyncio.sleep(10)
        assert len(told) == 4
        process.resume()
        await asyncio.sleep(0.5)
        assert told[4:] == ["task 12", "job 12"] or told[4:] == ["job 12", "task 12"], told
        process.kill()
        await asyncio.sleep(60)
        assert len(told) == 6
        kept.append(task)
        return list(told)

    kept: list[Any] = []
    try:
        assert len(loop.run_until_complete(main())) == 6
    finally:
        loop.close()
    kept[0]._log_destroy_pending = False
