"""Figures of the partitions that this broker leads and that have other replicas, for its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.base.steps import Steps
from service.base.types import TopicIdPartition
from service.partition.partition import Partition

_AT_A_TIME = 100


@dataclass(slots=True)
class LedFigures:
    """Counts of led partitions, and what each other broker lacks of them."""

    under_replicated: int = 0
    """without those whose only missing replicas are added by a reassignment"""
    under_min_isr: int = 0
    at_min_isr: int = 0
    """those that take no more records with acks=all when one more replica leaves the ISR"""
    lags: dict[int, int] = field(default_factory=dict)
    """by broker: records that it lacks at most, of any one partition"""


def measure_led(partitions: Iterable[Partition], moving: Mapping[TopicIdPartition, int]) -> Steps[LedFigures]:
    """Return the figures of led partitions. `moving`: number of replicas that a reassignment adds to one."""
    found = LedFigures()
    for count, partition in enumerate(partitions):
        if count % _AT_A_TIME == 0:
            yield
        leading = partition.leading
        if leading is None:
            continue
        shape, in_sync = leading.shape, len(leading.in_sync)
        found.under_replicated += len(shape.isr) < len(shape.replicas) - moving.get(partition.tip, 0)
        found.under_min_isr += in_sync < leading.min_isr
        found.at_min_isr += in_sync == leading.min_isr
        start = partition.start_offset
        for one in leading.followers:
            behind = leading.end_offset - max(one.end_offset, start)
            if behind >= found.lags.get(one.broker_id, 0):
                found.lags[one.broker_id] = behind
    return found
