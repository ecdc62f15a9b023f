"""Settings, clocks, timers and counters that the shards of a coordinator share on this node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from service.base.timers import Timers
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.shard import BackgroundWork
from service.records.batch import CompressionType

AT_END_OF_TURN: Final = -1
"""Linger time with which the decisions of one turn of the loop become one batch."""


class RuntimeSettings(NamedTuple):
    """Settings of one coordinator, read for each use. A write not committed in `commit_timeout_ms` fails."""

    linger_ms: int = AT_END_OF_TURN
    commit_timeout_ms: int = 5000
    codec: CompressionType = CompressionType.NONE
    load_buffer_bytes: int = 5 << 20


class ShardEnvironment(NamedTuple):
    """Dependencies that all shards of a coordinator on this node share."""

    now_ms: Callable[[], int]
    """wall clock"""
    monotonic_ms: Callable[[], int]
    timers: Timers
    settings: Callable[[], RuntimeSettings]
    metrics: RuntimeMetrics
    work: Callable[[Any, Hashable, BackgroundWork], None]
    """runs long work of a `ShardContext` in slices, then calls its `worked`"""
