"""Apache Kafka's own `kafka-dump-log` opens every file of a log that we wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.hot.log import LocalLog
from tests.support.kafka_tools import run_tool
from tests.unit.hot.logs import START_MS, batch, open_log

pytestmark = pytest.mark.java


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Several sealed segments and an active one that is still in use; three producers, two epochs."""
    made = open_log(tmp_path, segment_bytes=20_000, index_interval_bytes=500)
    for n in range(300):
        one = batch(3, timestamp=START_MS + n, producer_id=n % 3, epoch=0, sequence=n // 3 * 3)
        made.append(one, n // 200, START_MS)
    return made


def dumped(*arguments: str | Path) -> str:
    result = run_tool("dump-log", *arguments)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def joined(log: LocalLog, *patterns: str) -> str:
    return ",".join(str(path) for pattern in patterns for path in sorted(log.dir.glob(pattern)))


def test_every_record_is_listed(log: LocalLog) -> None:
    text = dumped("--files", joined(log, "*.log"), "--deep-iteration", "--print-data-log")
    assert len(re.findall(r"^\| offset: ", text, re.MULTILINE)) == 900
    assert "isvalid: false" not in text
    assert "corrupt" not in text.lower()


def test_indexes_are_true_of_the_logs(log: LocalLog) -> None:
    files = joined(log, "*.index", "*.timeindex")
    sane = dumped("--files", files, "--index-sanity-check")
    assert sane.count("passed sanity check.") == len(files.split(","))
    verified = dumped("--files", files, "--verify-index-only")
    assert "Found" not in verified
    assert "mismatch" not in verified.lower()


def test_snapshots_are_read(log: LocalLog) -> None:
    text = dumped("--files", joined(log, "*.snapshot"))
    assert text.count("producerId: ") == 3 * len(list(log.dir.glob("*.snapshot")))
