"""Kafka Connect, distributed: a file is written to a topic and another from it, and a worker is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import REPLICAS, NewTopic
from tests.support.connect import Worker
from tests.support.isolation import values
from tests.support.processes import wait_until
from tests.support.requirements import need_kafka_apps

pytestmark = pytest.mark.java


@pytest.fixture
def workers(bootstrap: str, tmp_path: Path) -> Iterator[list[Worker]]:
    need_kafka_apps()
    group = f"connect-{os.getpid()}"
    made = [Worker(bootstrap, group, REPLICAS, tmp_path / f"worker-{number}") for number in range(2)]
    try:
        for one in made:
            one.wait_up()
        yield made
    finally:
        for one in made:
            one.close()


@pytest.mark.thorough
def test_every_line_of_a_file_arrives_though_a_worker_is_killed(
    workers: list[Worker], new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, source, sink = new_topic(1), tmp_path / "source.txt", tmp_path / "sink.txt"

    def write(numbers: range) -> None:
        with source.open("a") as file:
            file.writelines(f"line {number}\n" for number in numbers)

    def arrived(count: int) -> bool:
        lines = sink.read_text().splitlines() if sink.exists() else []
        return set(lines) == {f"line {number}" for number in range(count)}

    write(range(1000))
    for name, file, own in (
        ("source", source, {"connector.class": "FileStreamSource", "topic": topic, "batch.size": "100"}),
        ("sink", sink, {"connector.class": "FileStreamSink", "topics": topic}),
    ):
        config = {"name": name, "config": {**own, "tasks.max": "1", "file": str(file)}}
        wait_until(f"the {name} to be made", lambda told=config: workers[0].ask("connectors", told), 60, 0.3)  # type: ignore[misc]
    wait_until("the lines to arrive", lambda: arrived(1000), 60, 0.2)
    places = {name: workers[0].runs(name) for name in ("source", "sink")}
    assert sorted(places.values()) == sorted(one.id for one in workers), "each worker has one of the tasks"
    dies, stays = workers if places["source"] == workers[0].id else reversed(workers)
    write(range(1000, 2000))
    dies.kill()
    write(range(2000, 3000))
    wait_until("the other to have both tasks", lambda: stays.runs("source") == stays.id, 60, 0.3)
    wait_until("all lines to arrive", lambda: arrived(3000), 60, 0.2)
    assert stays.runs("sink") == stays.id


@pytest.mark.thorough
def test_a_source_writes_every_line_exactly_once_though_workers_are_killed(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Each batch of the source is a transaction with its place in the file; killed workers are fenced."""
    need_kafka_apps()
    topic, source = new_topic(1), tmp_path / "source.txt"
    group = f"connect-once-{os.getpid()}"

    def worker(number: int) -> Worker:
        folder = tmp_path / f"once-{number}"
        return Worker(bootstrap, group, REPLICAS, folder, exactly_once_source_support="enabled")

    def write(numbers: range) -> None:
        with source.open("a") as file:
            file.writelines(f"line {number}\n" for number in numbers)

    def arrived(count: int) -> bool:
        return len(values(bootstrap, topic)) >= count

    made = [worker(0), worker(1)]
    try:
        for one in made:
            one.wait_up()
        write(range(1000))
        own = {
            "connector.class": "FileStreamSource",
            "topic": topic,
            "batch.size": "100",
            "file": str(source),
        }
        config = {"name": "once", "config": {**own, "tasks.max": "1", "exactly.once.support": "required"}}
        wait_until("the source to be made", lambda: made[0].ask("connectors", config), 60, 0.3)
        for number in range(2):
            wait_until("the lines to arrive", lambda number=number: arrived(1000 * (number + 1)), 90, 0.2)  # type: ignore[misc]
            place = next((one.runs("once") for one in made if one.is_running), "")
            write(range(1000 * (number + 1), 1000 * (number + 2)))
            dies = next((one for one in made if one.id == place), made[number])
            dies.kill()
            made.append(worker(number + 2))
            made[-1].wait_up()
        wait_until("all lines to arrive", lambda: arrived(3000), 90, 0.2)
    finally:
        for one in made:
            one.close()
    assert values(bootstrap, topic) == [b"line %d" % number for number in range(3000)]
