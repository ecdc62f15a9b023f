"""Rendering of samples as text for Prometheus, a slice of the loop at a time.

`prometheus_client` writes the lines. It gets few enough at once that a turn of the loop stays short, whatever
the number of partitions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from service.base.metrics import HistogramSnapshot
from service.base.slices import Slice
from service.console.families import FAMILIES, PARTITION
from service.console.family import COUNTER, GAUGE, HISTOGRAM, Family
from service.console.measuring import (
    PartitionTotals,
    of_node,
    of_partitions,
    of_replicas,
    of_transactions,
)
from service.console.measuring_groups import of_groups, of_lag
from service.console.ports import ObservedNode
from service.console.sample import Sample
from service.partition.partition import Partition


class TextFormat(NamedTuple):
    """A text format of metrics. `write` gives the text of a registry."""

    content_type: str
    write: Callable[[Any], bytes]
    end: bytes


_EOF: Final = b"# EOF\n"
OPENMETRICS: Final = TextFormat(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, _EOF)
PLAIN: Final = TextFormat("text/plain; version=0.0.4; charset=utf-8", generate_latest, b"")
"""Format that every version of Prometheus reads; for whoever asks for no other."""

BLOCK_BYTES: Final = 64 << 10
_LINES: Final = 50
"""Lines that are written at once."""
_SAMPLES: Final = 10
"""Samples that are measured at once."""
_COMPRESSED_AT_ONCE: Final = 16 << 10
_GZIP_LEVEL: Final = 5
_GZIP: Final = 31
"""`wbits` of zlib for gzip's head and trailer."""
_METRICS: Final = {
    COUNTER: CounterMetricFamily,
    GAUGE: GaugeMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}


class _Registry:
    """Registry with one metric, for `generate_latest`."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def render(
    node: ObservedNode,
    now_ms: int,
    *,
    most_partitions: int,
    more: Iterable[Sample] = (),
    text_format: TextFormat = OPENMETRICS,
) -> list[bytes]:
    """Return the whole text, in pieces. `now_ms` is the wall clock; `more` are samples of the process;
    `most_partitions` have their own."""
    piece = Slice()
    partitions = node.partitions()
    found = await _measured(piece, node, partitions, now_ms, more)
    told = partitions[:most_partitions]
    if most_partitions:
        left_out = len(partitions) - len(told)
        found["firn_partitions_left_out"] = [Sample("firn_partitions_left_out", left_out)]
    text = _Text()
    for name, family in FAMILIES.items():
        is_first = True
        chunks = _chunks_of_partitions(name, told) if family in PARTITION else _chunks(found.get(name, ()))
        for chunk in chunks:
            if piece.is_over():
                await piece.next_turn()
            if not chunk:
                continue
            lines = text_format.write(_Registry(_metric(family, chunk)))
            text.add(_without_head(lines) if not is_first else lines.removesuffix(_EOF))
            is_first = False
    text.add(text_format.end)
    return text.blocks()


async def compressed(text: Iterable[bytes]) -> list[bytes]:
    """Return `text` as gzip compresses it."""
    piece, found = Slice(), _Text()
    gzip = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    for block in text:
        for at in range(0, len(block), _COMPRESSED_AT_ONCE):
            if piece.is_over():
                await piece.next_turn()
            found.add(gzip.compress(block[at : at + _COMPRESSED_AT_ONCE]))
    found.add(gzip.flush())
    return found.blocks()


class _Text:
    """Text that grows by small pieces and is sent in large ones."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= BLOCK_BYTES:
            self._join()

    def _join(self) -> None:
        self._blocks.append(b"".join(self._pieces))
        self._pieces.clear()
        self._size = 0

    def blocks(self) -> list[bytes]:
        self._join()
        return [one for one in self._blocks if one]


async def _measured(
    piece: Slice, node: ObservedNode, partitions: Sequence[Partition], now_ms: int, more: Iterable[Sample]
) -> dict[str, list[Sample]]:
    """Return the samples of everything but single partitions, by family."""
    found: dict[str, list[Sample]] = {}

    async def add(samples: Iterable[Sample]) -> None:
        for count, sample in enumerate(samples):
            if count % _SAMPLES == 0 and piece.is_over():
                await piece.next_turn()
            found.setdefault(sample.name, []).append(sample)

    totals = PartitionTotals(now_ms, node.transaction_max_timeout_ms)
    for partition in partitions:
        if piece.is_over():
            await piece.next_turn()
        totals.add(partition)
    await add(totals.samples(node.closed_count()))
    await add(of_node(node, now_ms))
    await add(of_replicas(*await piece.go_on(node.replica_counts())))
    if node.groups is not None:
        await add(of_groups(node.groups, await piece.go_on(node.groups.census())))
        await add(of_lag(await node.groups.lag()))
    figures = node.transactions(now_ms)
    if figures is not None:
        await add(of_transactions(figures))
    await add(more)
    return found


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
    """Yield the samples of some partitions at a time: none, where they have no value of this family."""
    for at in range(0, len(partitions), _LINES):
        yield tuple(of_partitions(name, partitions[at : at + _LINES]))


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
    """Return the samples alone. Labels are foreign text, which may have anything but a line feed."""
    lines, at = lines.removesuffix(_EOF), 0
    while lines.startswith(b"# ", at):
        at = lines.index(b"\n", at) + 1
    return lines[at:]
