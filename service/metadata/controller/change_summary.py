"""Summary of what the cluster itself has changed: elections, ISRs and brokers, for the audit log. [P]

One summary takes any number of published deltas, so that ten thousand elections are one line.
"""

from __future__ import annotations

from typing import Final

from service.base.printable import printable
from service.base.steps import Steps
from service.metadata.controller.partition_change import RECOVERING
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, MetadataImage, PartitionImage
from service.security.audited_change import MOST_NAMED, AuditedChange

WORDS: Final = {
    "broker-registered": "brokers registered",
    "broker-unfenced": "brokers unfenced",
    "broker-fenced": "brokers fenced",
    "broker-shutting-down": "brokers that begin their controlled shutdown",
    "broker-removed": "brokers removed",
    "leader-elected": "leaders elected",
    "leader-elected-unclean": "leaders elected uncleanly, from replicas out of sync",
    "leader-lost": "partitions left without a leader",
    "isr-shrunk": "ISRs shrunk",
    "isr-expanded": "ISRs expanded",
}
"""Words by event, in the order of the lines."""


def matters(before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> bool:
    """Return whether a delta may have something for the summary."""
    if before.brokers is not after.brokers:
        return True
    return any(topic_id in before.topics_by_id for topic_id in delta.topics)


class ChangeSummary:
    """Numbers of changes by event, with words for the first ones."""

    def __init__(self) -> None:
        self._items: dict[str, list[str]] = {event: [] for event in WORDS}
        self._numbers = dict.fromkeys(WORDS, 0)

    def changes(self) -> list[AuditedChange]:
        """Return what has changed: one for each event."""
        return [
            AuditedChange(event, words, self._items[event], self._numbers[event])
            for event, words in WORDS.items()
            if self._numbers[event]
        ]

    def add_in_steps(self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> Steps[None]:
        """Add the difference of two images, whose `delta` leads from one to the other, in steps."""
        if before.brokers is not after.brokers:
            self._brokers(before, after)
        for topic_id in delta.topics:
            known, topic = before.topics_by_id.get(topic_id), after.topics_by_id.get(topic_id)
            yield
            if known is None or topic is None:
                continue
            for number in delta.changed_partitions(topic_id):
                yield
                old, new = known.partitions.get(number), topic.partitions.get(number)
                if old is not None and new is not None:
                    self._partition(topic.name, number, old, new)

    def _add(self, event: str, item: str) -> None:
        self._numbers[event] += 1
        if len(self._items[event]) < MOST_NAMED:
            self._items[event].append(item)

    def _partition(self, topic: str, number: int, old: PartitionImage, new: PartitionImage) -> None:
        name = f"{printable(topic)}-{number}"
        if new.leader != old.leader:
            if not new.has_leader:
                event = "leader-lost"
            elif new.leader_recovery_state == RECOVERING != old.leader_recovery_state:
                event = "leader-elected-unclean"
            else:
                event = "leader-elected"
            self._add(event, f"{name} [leader {old.leader} -> {new.leader}, epoch {new.leader_epoch}]")
        lost, won = set(old.isr) - set(new.isr), set(new.isr) - set(old.isr)
        both = f"{name} [{_ids(old.isr)} -> {_ids(new.isr)}]"
        if lost:
            self._add("isr-shrunk", both)
        if won:
            self._add("isr-expanded", both)

    def _brokers(self, before: MetadataImage, after: MetadataImage) -> None:
        for broker_id in sorted({*before.brokers, *after.brokers}):
            old, new = before.brokers.get(broker_id), after.brokers.get(broker_id)
            for event in _events(old, new):
                self._add(event, str(broker_id))


def _events(old: BrokerImage | None, new: BrokerImage | None) -> list[str]:
    if new is None:
        return ["broker-removed"]
    events = []
    if old is None or old.epoch != new.epoch:
        events.append("broker-registered")
        old = None
    if not new.fenced and (old is None or old.fenced):
        events.append("broker-unfenced")
    if new.fenced and old is not None and not old.fenced:
        events.append("broker-fenced")
    if new.in_controlled_shutdown and not (old is not None and old.in_controlled_shutdown):
        events.append("broker-shutting-down")
    return events


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "none"
