"""The table of metrics, the page made of it, and who may load what serves them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from uuid import UUID

from service.base.types import TopicIdPartition
from service.console.docs import document
from service.console.families import FAMILIES, GROUPS, PARTITION
from service.console.family import COUNTER
from service.console.measuring import MOST_REASONS, OF_PARTITION, reasons
from service.tiering.metrics import TieringMetrics
from tests.support.processes import PYTHON, REPOSITORY


def test_the_page_is_made_of_the_table() -> None:
    assert (Path(REPOSITORY) / "docs" / "metrics.md").read_text("utf-8") == document()


def test_names_are_told_apart_and_end_in_their_units() -> None:
    assert len(FAMILIES) == sum(map(len, GROUPS.values()))
    for name, family in FAMILIES.items():
        assert name.startswith(("firn_", "process_"))
        assert not name.endswith("_total"), "prometheus_client adds it to counters"
        assert family.kind != COUNTER or not name.endswith("_seconds") or name == "process_cpu_seconds"
        assert family.help.endswith((".", ").")), name


def test_every_series_of_a_partition_has_its_value() -> None:
    assert set(OF_PARTITION) == {family.name for family in PARTITION}


def test_reasons_that_differ_in_numbers_are_one() -> None:
    metrics = TieringMetrics()
    for number in range(50):
        tip = TopicIdPartition(UUID(int=number), "t", 0)
        metrics.reasons[tip] = f"offsets {number} to {number * 17} are in no tier"
    assert reasons(metrics) == {"offsets N to N are in no tier": 50}


def test_waiting_partitions_are_counted_by_reason() -> None:
    metrics = TieringMetrics()
    for number in range(5):
        metrics.waiting[TopicIdPartition(UUID(int=number), "t", 0)] = 1
    assert reasons(metrics) == {}
    metrics.store = "no answer"
    metrics.reasons[TopicIdPartition(UUID(int=4), "t", 0)] = "no HEAD"
    assert reasons(metrics) == {"no answer": 4, "no HEAD": 1}


def test_there_are_only_so_many_reasons() -> None:
    metrics = TieringMetrics()
    for number in range(100):
        metrics.reasons[TopicIdPartition(UUID(int=number), "t", 0)] = f"reason {chr(0x4E00 + number)}"
    found = reasons(metrics)
    assert len(found) == MOST_REASONS + 1
    assert found["other"] == 100 - MOST_REASONS


def test_a_node_without_the_listener_loads_nothing_of_it() -> None:
    code = (
        "import sys; import service.cli.server, service.node.node; "
        "print([name for name in ('aiohttp', 'prometheus_client', 'service.console') if name in sys.modules])"
    )
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert found.stdout.strip() == "[]"
