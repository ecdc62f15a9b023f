"""Progress lines of a long job, and its signals. No Spark is started."""

from __future__ import annotations

import io
import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from service.pipelines.follow import Interrupts, Rows, records_left
from service.pipelines.job import ProgressLine
from tests.support.processes import wait_until
from tests.support.terminal import Terminal


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal(columns=40)
    yield found
    found.close()


def test_progress_is_painted_over_within_one_line_and_leaves_none(terminal: Terminal) -> None:
    terminal.out.write("before\n")
    said = ["archive: 1 record"]
    with ProgressLine(lambda: said[0], terminal.out):
        for text in ("archive: 2 records, " + "and more " * 9, "archive: 3"):
            wait_until(f"{said} in {terminal.lines}", lambda: terminal.lines == ["before", said[0][:39]])
            said[0] = text
        wait_until(f"{said} in {terminal.lines}", lambda: terminal.lines == ["before", "archive: 3"])
    terminal.out.write("after\n")
    terminal.out.flush()
    wait_until(f"the end of {terminal.lines}", lambda: terminal.lines == ["before", "after", ""])


def test_without_a_terminal_there_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []
    with ProgressLine(lambda: str(asked.append(1))):
        pass
    assert asked == []
    assert capsys.readouterr().err == ""


def test_without_a_terminal_there_is_a_line_now_and_then_that_stays() -> None:
    out, numbers = io.StringIO(), itertools.count(1)
    with ProgressLine(lambda: f"archive: {next(numbers)}", out, every_s=0.01):
        wait_until("three lines", lambda: out.getvalue().count("\n") >= 3)
    assert out.getvalue().splitlines()[:3] == ["archive: 1", "archive: 2", "archive: 3"]


def test_the_backlog_is_what_the_source_has_beyond_the_batch() -> None:
    told = {
        "latestOffset": '{"a":{"0":100,"1":50},"@firn":{"bytes":{"a":{"0":9}}}}',
        "endOffset": {"a": {"0": 40}, "gone": {"0": 7}, "@firn": {"cluster": "c"}},
    }
    assert records_left({"sources": [told]}) == 110
    assert records_left({"sources": [{"latestOffset": None, "endOffset": None}]}) is None
    assert records_left(None) is None


def test_rows_are_counted_once_however_often_a_batch_is_reported() -> None:
    rows = Rows()

    def update(*pairs: tuple[int, int]) -> tuple[int, int]:
        rows.update([{"batchId": number, "numInputRows": count} for number, count in pairs])
        return rows.total, rows.batches

    assert update() == (0, 0)
    assert update((7, 100), (8, 50)) == (150, 2)
    # What Spark has forgotten stays counted; a trigger without rows reports the batch that it waits for.
    assert update((8, 50), (9, 0), (9, 0)) == (150, 2)
    assert update((9, 0), (9, 25), (10, 0)) == (175, 3)


def test_the_first_signal_is_noted_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert interrupts.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.received is signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.received is signal.SIGTERM
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
