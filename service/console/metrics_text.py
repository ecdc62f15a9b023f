"""Rendering of samples as OpenMetrics text, a slice of the loop at a time.

`prometheus_client` writes the lines. It gets few enough at once that a turn of the loop stays short, whatever
the number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.utils import floatToGoString

from service.base.metrics import HistogramSnapshot
from service.base.slices import Slice
from service.console.families import FAMILIES, PARTITION
from service.console.family import COUNTER, GAUGE, HISTOGRAM, Family
from service.console.measuring import (
    PartitionTotals,
    Sample,
    of_groups,
    of_node,
    of_partitions,
    of_transactions,
)
from service.console.ports import ObservedNode
from service.partition.partition import Partition

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_LINES: Final = 50
"""Lines that are written at once."""
_METRICS: Final = {
    COUNTER: CounterMetricFamily,
    GAUGE: GaugeMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}
_EOF: Final = b"# EOF\n"


class _Registry:
    """Registry with one metric, for `generate_latest`."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def render(
    node: ObservedNode, now_ms: int, *, with_partitions: bool, more: Iterable[Sample] = ()
) -> list[bytes]:
    """Return the whole text, in pieces. `now_ms` is the wall clock; `more` are samples of the process."""
    piece = Slice()
    partitions = node.partitions()
    totals = PartitionTotals(now_ms, node.transaction_max_timeout_ms)
    for partition in partitions:
        if piece.is_over():
            await piece.next_turn()
        totals.add(partition)
    found: dict[str, list[Sample]] = {}
    groups: Iterable[Sample] = ()
    if node.groups is not None:
        groups = of_groups(node.groups, await piece.go_on(node.groups.census()))
    figures = node.transactions(now_ms)
    transactions: Iterable[Sample] = () if figures is None else of_transactions(figures)
    own = (*of_node(node, now_ms), *totals.samples(node.closed_count()))
    for sample in (*own, *groups, *transactions, *more):
        found.setdefault(sample.name, []).append(sample)
    text: list[bytes] = []
    for name, family in FAMILIES.items():
        is_first = True
        if family in PARTITION:
            chunks = _chunks_of_partitions(name, partitions if with_partitions else ())
        else:
            chunks = _chunks(found.get(name, ()))
        for chunk in chunks:
            if piece.is_over():
                await piece.next_turn()
            lines: bytes = generate_latest(_Registry(_metric(family, chunk)))  # type: ignore[no-untyped-call]
            text.append(_without_head(lines) if not is_first else lines.removesuffix(_EOF))
            is_first = False
    text.append(_EOF)
    return text


def _chunks(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    chunk: list[Sample] = []
    size = 0
    for sample in samples:
        chunk.append(sample)
        size += _lines(sample)
        if size >= _LINES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _chunks_of_partitions(name: str, partitions: Sequence[Partition]) -> Iterator[Sequence[Sample]]:
    for at in range(0, len(partitions), _LINES):
        if chunk := tuple(of_partitions(name, partitions[at : at + _LINES])):
            yield chunk


def _lines(sample: Sample) -> int:
    return len(sample.value.counts) + 2 if isinstance(sample.value, HistogramSnapshot) else 1


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    make: Any = _METRICS[family.kind]
    metric: Metric = make(family.name, family.help, labels=family.labels, unit=family.unit)
    add: Any = metric.add_metric  # type: ignore[attr-defined]
    for name, value, labels in samples:
        assert len(labels) == len(family.labels), name
        if isinstance(value, HistogramSnapshot):
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(value.counts), strict=True))
            add(labels, buckets=buckets, sum_value=value.total)
        else:
            add(labels, value)
    return metric


def _without_head(lines: bytes) -> bytes:
    return b"".join(line for line in lines.splitlines(keepends=True) if not line.startswith(b"# "))
