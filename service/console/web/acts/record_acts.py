"""Production of one record. Blocking.

The record's bytes are what was typed: nothing is encoded by a schema registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError
from service.client.admin import ChangingCluster
from service.client.partitioner import partition_of_key
from service.client.record_produce import produce_batch
from service.console.web.acts import fields
from service.console.web.acts.act import Act, ActField, ActForm, ActOutcome, ActPreview, ActWorld, word_of
from service.console.web.acts.topic_acts import described
from service.console.web.markup import link
from service.console.web.words import counted
from service.records.builder import BatchBuilder

MOST_KEY: Final = 64 << 10
ANY: Final = -1


class _Target(NamedTuple):
    topic_id: UUID
    partition: int


class RecordProduction(Act):
    """One record in one partition of a topic."""

    event = "records-produced"
    event_words = "records produced"
    verb = "Produce the record"

    def __init__(self, values: Mapping[str, str], world: ActWorld) -> None:
        self._topic = fields.name(values, "topic", "Topic")
        self._partition = fields.whole(values, "partition", "Partition", 0, default=ANY)
        self._key = fields.content(values, "key", "The key")
        self._value = fields.content(values, "value", "The value")
        self._headers = fields.headers(values, "headers", "Headers")
        self._world = world
        if self._key is not None and len(self._key) > MOST_KEY:
            raise ConfigError(f"The key has {len(self._key):,} bytes: the console takes {MOST_KEY:,}")

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        topic = described(cluster, self._topic)
        count = len(topic.partitions)
        if self._partition >= count:
            raise ConfigError(f"{self._topic} has the partitions 0 to {count - 1}, and no {self._partition}")
        partition, why = self._chosen(count)
        facts = (
            ("Topic", self._topic),
            ("Partition", f"{partition}, {why}"),
            ("Key", _sized(self._key, "none")),
            (
                "Value",
                _sized(self._value, "none: a tombstone, which deletes the key where a topic is compacted"),
            ),
            ("Headers", f"{len(self._headers)}"),
        )
        item = (
            f"{self._topic}-{partition} [key={_sized(self._key, 'none')} value={_sized(self._value, 'none')}]"
        )
        return ActPreview(
            word_of(self._topic),
            (item,),
            facts,
            seen=(topic.topic_id, count),
            chosen=_Target(topic.topic_id, partition),
        )

    def _chosen(self, count: int) -> tuple[int, str]:
        """Return the partition, and why it is that one."""
        if self._partition != ANY:
            return self._partition, "as chosen"
        if self._key is not None:
            return partition_of_key(self._key, count), "by the key, as Java's clients choose it"
        return self._world.draw(count), "by chance, as there is no key"

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        topic_id, partition = preview.chosen
        builder = BatchBuilder()
        builder.add(self._world.now_ms(), self._key, self._value, self._headers)
        place = (self._topic, partition)
        offset = produce_batch(cluster, topic_id, place, bytes(builder.build()))
        where = link("/records", topic=self._topic, partition=partition, where="offset", at=offset)
        return ActOutcome(
            f"The record is in {self._topic}-{partition}, at offset {offset:,}.",
            link=("Look at the record", where),
            items=(f"{preview.items[0]} at offset {offset}",),
        )


def _sized(data: bytes | None, none: str) -> str:
    return none if data is None else counted(len(data), "byte")


_WAYS: Final = ((fields.TEXT, "text"), (fields.JSON, "JSON (checked, sent as it is)"), (fields.HEX, "hex"))
_LONGEST: Final = 1 << 20
PRODUCE: Final = ActForm(
    "produce",
    "Produce a record",
    "/records",
    "The bytes are what you type: no schema registry encodes them. firn produce sends many, and larger ones.",
    (
        ActField("topic", "Topic", required=True),
        ActField("partition", "Partition", "number", "empty: by the key, or any", 10),
        ActField("key_form", "Key as", "choice", options=((fields.NOTHING, "no key"), *_WAYS)),
        ActField("key", "Key", "lines", most=MOST_KEY),
        ActField(
            "value_form", "Value as", "choice", options=(*_WAYS, (fields.NOTHING, "no value: a tombstone"))
        ),
        ActField("value", "Value", "lines", most=_LONGEST),
        ActField("headers", "Headers", "lines", "NAME=VALUE, one a line", most=MOST_KEY),
    ),
    RecordProduction,
    most_bytes=2 << 20,
)
FORMS: Final = (PRODUCE,)
