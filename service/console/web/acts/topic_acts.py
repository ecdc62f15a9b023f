"""Acts on topics: create one, give it more partitions, delete it. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from service.client.admin import ChangingCluster
from service.client.admin_models import TopicInfo
from service.client.partition_changes import add_partitions
from service.console.web.acts import fields
from service.console.web.acts.act import Act, ActField, ActForm, ActOutcome, ActPreview, ActWorld, word_of
from service.console.web.markup import link

DEFAULT: Final = -1
"""Number that the broker chooses."""
MANY: Final = 1_000
_TOPIC: Final = ActField("topic", "Topic", required=True)


class TopicCreation(Act):
    """Creation of a topic."""

    event = "topics-created"
    event_words = "topics created"
    verb = "Create the topic"

    def __init__(self, values: Mapping[str, str], _: ActWorld) -> None:
        self._name = fields.name(values, "topic", "Topic")
        self._partitions = fields.whole(values, "partitions", "Partitions", 1, default=DEFAULT)
        self._replicas = fields.whole(values, "replication", "Replication factor", 1, 32_767, DEFAULT)
        self._settings = fields.settings(values, "settings", "Settings")

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        self._create(cluster, dry_run=True)
        partitions = _or_default(self._partitions, "num.partitions")
        replicas = _or_default(self._replicas, "default.replication.factor")
        notes = []
        if self._partitions >= MANY:
            notes.append(
                f"{self._partitions:,} partitions are many: each has a log of its own at each replica."
            )
        return ActPreview(
            word_of(self._name),
            (
                f"{self._name} [partitions={self._partitions} replicas={self._replicas}"
                + "".join(f" {key}={value}" for key, value in self._settings.items())
                + "]",
            ),
            (("Topic", self._name), ("Partitions", partitions), ("Replication factor", replicas)),
            ("Setting", "Value"),
            tuple(self._settings.items()),
            notes=tuple(notes),
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        self._create(cluster, dry_run=False)
        return ActOutcome(f"The topic {self._name} is there.", link=_link(self._name))

    def _create(self, cluster: ChangingCluster, *, dry_run: bool) -> None:
        cluster.create_topic(self._name, self._partitions, self._replicas, self._settings, dry_run=dry_run)


class PartitionAddition(Act):
    """More partitions for a topic."""

    event = "partitions-added"
    event_words = "partitions added"
    verb = "Add the partitions"

    def __init__(self, values: Mapping[str, str], _: ActWorld) -> None:
        self._name = fields.name(values, "topic", "Topic")
        self._count = fields.whole(values, "partitions", "Partitions", 1)

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        topic = described(cluster, self._name)
        before = len(topic.partitions)
        add_partitions(cluster, self._name, self._count, dry_run=True)
        return ActPreview(
            word_of(self._name),
            (f"{self._name} [partitions={self._count}, {before} before]",),
            (
                ("Topic", self._name),
                ("Partitions now", f"{before:,}"),
                ("Partitions then", f"{self._count:,}"),
            ),
            notes=(
                "The number cannot be lowered again.",
                "Records stay where they are; keys may go to other partitions from then on.",
            ),
            seen=(topic.topic_id, before),
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        add_partitions(cluster, self._name, self._count)
        return ActOutcome(f"{self._name} has {self._count:,} partitions.", link=_link(self._name))


class TopicDeletion(Act):
    """Deletion of a topic and of all its records, in both tiers."""

    event = "topics-deleted"
    event_words = "topics deleted"
    verb = "Delete the topic"

    def __init__(self, values: Mapping[str, str], _: ActWorld) -> None:
        self._name = fields.name(values, "topic", "Topic")

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        topic = described(cluster, self._name)
        replicas = max((len(one.replicas) for one in topic.partitions), default=0)
        notes = [
            "All its records go, on disk and in the bucket, for good.",
            "Offsets that groups have committed in it go, too.",
        ]
        if self._name.startswith("__"):
            notes.insert(0, "A topic of this name is the cluster's own: groups or transactions may need it.")
        return ActPreview(
            word_of(self._name),
            (f"{self._name} [id={topic.topic_id}]",),
            (
                ("Topic", self._name),
                ("Id", str(topic.topic_id)),
                ("Partitions", f"{len(topic.partitions):,}"),
                ("Replication factor", f"{replicas}"),
            ),
            notes=tuple(notes),
            seen=topic.topic_id,
            chosen=topic.topic_id,
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        cluster.delete_topic(self._name, preview.chosen)
        return ActOutcome(f"The topic {self._name} is deleted.", link=("All topics", "/topics"))


def described(cluster: ChangingCluster, name: str) -> TopicInfo:
    """Return a topic with its partitions. Raises `RequestError` if it is not there."""
    (topic,) = cluster.topics([name])
    return topic


def _or_default(number: int, key: str) -> str:
    return f"the broker's {key}" if number == DEFAULT else f"{number:,}"


def _link(name: str) -> tuple[str, str]:
    return name, link("/topic", name=name)


SETTINGS_HINT: Final = "KEY=VALUE, one a line"
CREATE_TOPIC: Final = ActForm(
    "create-topic",
    "Create a topic",
    "/topics",
    "The cluster checks it before anything is created.",
    (
        _TOPIC,
        ActField("partitions", "Partitions", "number", "empty: the broker's num.partitions", 10),
        ActField("replication", "Replication factor", "number", "empty: the broker's", 5),
        ActField("settings", "Settings", "lines", SETTINGS_HINT, 32_768),
    ),
    TopicCreation,
)
ADD_PARTITIONS: Final = ActForm(
    "add-partitions",
    "Add partitions",
    "/topics",
    "A topic can only grow.",
    (_TOPIC, ActField("partitions", "Partitions in all", "number", "", 10, required=True)),
    PartitionAddition,
)
DELETE_TOPIC: Final = ActForm(
    "delete-topic",
    "Delete a topic",
    "/topics",
    "With all its records, in both tiers.",
    (_TOPIC,),
    TopicDeletion,
)
FORMS: Final = (CREATE_TOPIC, ADD_PARTITIONS, DELETE_TOPIC)
