"""Any history of metadata: replayed whole, or from a snapshot of any moment on, it says the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import RequestError
from service.base.steps import at_once
from service.base.types import TopicIdPartition
from service.metadata.batches import decode_batches, encode_batch
from service.metadata.controller.catalog_control import commit_catalog, forget_topics
from service.metadata.controller.cluster_control import register_broker
from service.metadata.controller.configs_control import incremental_alter_configs
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.heartbeat_control import fence_broker, unfence_broker
from service.metadata.controller.producer_ids_control import allocate_producer_ids
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    CreateTopic,
    DeleteTopic,
    TopicDefaults,
)
from service.metadata.controller.topics_control import create_topics, delete_topics
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame, newest
from service.metadata.image import MetadataImage
from service.metadata.image_frames import image_frames
from service.metadata.publication import apply_batch
from service.metadata.records import LifeRecord, RecoveredTopicRecord
from service.remote.catalog import CatalogCommit, CatalogEntry
from tests.support.bootstrap import bootstrap_frames
from tests.unit.metadata.controllers import CLUSTER_ID, AnyConfig, registration

NAMES = ["a", "b", "a.b", "a_b", "c.d_e", "t"]
names = st.sampled_from(NAMES)
brokers = st.integers(1, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), names, st.integers(1, 70), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("delete"), names),
        st.tuples(st.just("config"), st.sampled_from([2, 4]), names, st.integers(0, 3), st.booleans()),
        st.tuples(st.just("register"), brokers),
        st.tuples(st.just("unfence"), brokers),
        st.tuples(st.just("fence"), brokers),
        st.tuples(st.just("producer ids"), brokers),
        st.tuples(st.just("catalog"), names, st.integers(0, 4)),
        st.tuples(st.just("forget"), names, st.booleans()),
        st.tuples(st.just("life"), st.integers(0, 2)),
        st.tuples(st.just("recovered"), names, st.sampled_from([(), (0,), (0, 3)]), st.booleans()),
    ),
    max_size=40,
)


class History:
    """Decisions applied one after another; remembers every batch and every image."""

    def __init__(self) -> None:
        self.images = [MetadataImage()]
        self.batches: list[tuple[Frame, ...]] = []
        self._uuids = (UUID(int=i + 1000) for i in count())
        self.apply(ControllerResult(bootstrap_frames(), None))

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def apply(self, decision: ControllerResult[Any]) -> None:
        if decision.frames:
            delta = MetadataDelta(self.image).replay_all(frame.record for frame in decision.frames)
            offset = self.image.offset + len(decision.frames)
            self.images.append(delta.build(offset, 1 + len(self.batches) // 5, 1000 + offset))
            self.batches.append(decision.frames)

    def encoded(self, start: int) -> Iterator[bytearray]:
        """The log from the batch with this number on, in its own bytes."""
        for number in range(start, len(self.batches)):
            image = self.images[number + 1]
            yield encode_batch(
                self.batches[number],
                base_offset=self.images[number].offset + 1,
                epoch=image.epoch,
                timestamp_ms=image.timestamp_ms,
            )

    def decide(self, step: tuple[Any, ...]) -> ControllerResult[Any]:
        image = self.image
        match step:
            case ("create", name, partitions, factor, tiered):
                configs = (("retention.ms", "1"), *((("remote.storage.enable", "true"),) if tiered else ()))
                decide = create_topics(
                    image,
                    [CreateTopic(name, partitions, factor, configs=configs)],
                    defaults=TopicDefaults(),
                    rules=AnyConfig(),
                    new_uuid=self._uuids.__next__,
                )
                return at_once(decide)
            case ("delete", name):
                return at_once(delete_topics(image, [DeleteTopic(name)], now_ms=5000 + image.offset))
            case ("forget", name, twice):
                gone = [t.topic_id for t in image.tombstones.values() if t.name == name]
                return forget_topics(image, gone * (1 + twice))
            case ("config", kind, name, operation, is_list):
                resource = name if kind == 2 else str(1 + NAMES.index(name) % 3)
                change = AlterConfig("cleanup.policy" if is_list else "segment.ms", operation, "delete")
                resources = [AlterResource(kind, resource, (change,))]
                return at_once(incremental_alter_configs(image, resources, AnyConfig()))
            case ("register", broker):
                return at_once(
                    register_broker(
                        image,
                        registration(broker),
                        cluster_id=CLUSTER_ID,
                        next_offset=image.offset + 1,
                        has_session=False,
                    )
                )
            case ("catalog", name, partition):
                return self.commit_next(name, partition)
            case ("life", more):
                life = image.life + more
                return ControllerResult(
                    (newest(LifeRecord(life=life, life_id=UUID(int=life) if life else None)),), None
                )
            case ("recovered", name, unchecked, settings_unknown):
                topic = image.topics_by_name.get(name)
                record = RecoveredTopicRecord(
                    topic_id=None if topic is None else topic.id,
                    unchecked_partitions=unchecked,
                    settings_unknown=settings_unknown,
                )
                return ControllerResult(() if topic is None else (newest(record),), None)
            case (what, broker):
                epoch = image.brokers[broker].epoch if broker in image.brokers else -1
                if what == "fence":
                    return at_once(fence_broker(image, broker, epoch))
                if what == "unfence":
                    return at_once(unfence_broker(image, broker, epoch))
                return allocate_producer_ids(image, broker, epoch)
        raise AssertionError(step)

    def commit_next(self, name: str, partition: int) -> ControllerResult[Any]:
        topic = self.image.topics_by_name.get(name)
        if topic is None or partition not in topic.partitions:
            return ControllerResult((), None)
        current = self.image.remote.get((topic.id, partition))
        version = 0 if current is None else current.version
        epoch = topic.partitions[partition].leader_epoch
        entry = CatalogEntry(version + 1, f"m{version}", epoch, 0, 10 * (version + 1), version + 1, 100)
        return commit_catalog(
            self.image, [CatalogCommit(TopicIdPartition(topic.id, name, partition), version, entry)]
        )


def history_of(script: list[tuple[Any, ...]]) -> History:
    history = History()
    for step in script:
        try:
            history.apply(history.decide(step))
        except RequestError:
            continue
    return history


def same(one: MetadataImage, other: MetadataImage) -> None:
    """Equal, and so is every map in them, whatever its shape inside."""
    assert one == other
    for topic in other.topics_by_id.values():
        assert list(one.topics_by_name[topic.name].partitions.values()) == list(topic.partitions.values())


@settings(max_examples=60, deadline=None)
@given(steps, st.floats(0, 1))
def test_a_snapshot_and_the_log_after_it_say_what_the_whole_log_says(
    script: list[tuple[Any, ...]], at: float
) -> None:
    history = history_of(script)
    cut = int(at * len(history.batches))
    snapshot = history.images[cut]
    delta = MetadataDelta(MetadataImage()).replay_all(frame.record for frame in image_frames(snapshot))
    image = delta.build(snapshot.offset, snapshot.epoch, snapshot.timestamp_ms)
    same(image, snapshot)
    for encoded in history.encoded(cut):
        (batch,) = decode_batches(encoded)
        image, _ = apply_batch(image, batch)
    same(image, history.image)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_an_image_never_changes_once_it_is_built(script: list[tuple[Any, ...]]) -> None:
    history = history_of(script)
    image = MetadataImage()
    for number, encoded in enumerate(history.encoded(0)):
        (batch,) = decode_batches(encoded)
        same(image, history.images[number])
        image, _ = apply_batch(image, batch)
    same(image, history.image)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_the_image_is_consistent_after_any_history(script: list[tuple[Any, ...]]) -> None:
    image = history_of(script).image
    assert {t.id for t in image.topics_by_name.values()} == set(image.topics_by_id)
    assert all((kind, name) != (2, "") for kind, name in image.configs)
    assert {name for kind, name in image.configs if kind == 2} <= set(image.topics_by_name)
    assert all(image.partition(*key) is not None for key in image.remote)
    assert set(image.recovered) <= set(image.topics_by_id), "the state of a recovery goes with its topic"
    assert not set(image.tombstones) & set(image.topics_by_id), "what is deleted does not come back"
    dotted = {name for name in image.topics_by_name if "." in name or "_" in name}
    assert {name for group in image.collisions.values() for name in group} == dotted
    assert all(len(group) == 1 for group in image.collisions.values())
    for topic in image.topics_by_id.values():
        for partition in topic.partitions.values():
            assert partition.isr, "the last replica in sync stays"
            assert set(partition.isr) <= set(partition.replicas)
            if partition.has_leader:
                assert partition.leader in partition.isr
                assert image.brokers[partition.leader].is_active


@settings(max_examples=40, deadline=None)
@given(steps)
def test_a_deleted_topic_with_an_archive_is_remembered_until_it_is_forgotten(
    script: list[tuple[Any, ...]],
) -> None:
    history = history_of(script)
    expected: dict[UUID, tuple[str, int]] = {}
    for before, after in pairwise(history.images):
        for topic_id in set(before.topics_by_id) - set(after.topics_by_id):
            topic = before.topics_by_id[topic_id]
            tiered = "remote.storage.enable" in before.config(2, topic.name)
            if tiered or any(key[0] == topic_id for key in before.remote):
                expected[topic_id] = (topic.name, len(topic.partitions))
        for topic_id in set(before.tombstones) - set(after.tombstones):
            del expected[topic_id]
        assert {t.topic_id: (t.name, t.partitions) for t in after.tombstones.values()} == expected
