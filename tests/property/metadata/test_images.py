"""Any history of metadata: replayed whole, or from a snapshot of any moment on, it says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from service.metadata.controller.erase_control import (
    ErasedNotes,
    finish_erasure,
    note_erased,
    remove_erasure,
    start_erasure,
)
from service.metadata.controller.heartbeat_control import fence_broker, unfence_broker
from service.metadata.controller.producer_ids_control import allocate_producer_ids
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    CreateTopic,
    DeleteTopic,
    TopicDefaults,
)
from service.metadata.controller.rewrite_control import RewriteChange, change_rewrites
from service.metadata.controller.topics_control import create_topics, delete_topics
from service.metadata.delta import MetadataDelta
from service.metadata.frames import Frame, newest
from service.metadata.image import MetadataImage, live_rewrite
from service.metadata.image_diff import apply_snapshot
from service.metadata.image_frames import image_frames
from service.metadata.publication import apply_batch
from service.metadata.records import LifeRecord, PartitionChangeRecord, RecoveredTopicRecord
from service.remote.catalog import (
    CatalogCommit,
    CatalogEntry,
    ErasedPlace,
    Erasure,
    RewriteIntent,
    RewriteKind,
)
from tests.support.bootstrap import bootstrap_frames
from tests.unit.metadata.controllers import CLUSTER_ID, AnyConfig, registration

NAMES = ["a", "b", "a.b", "a_b", "c.d_e", "t"]
names = st.sampled_from(NAMES)
brokers = st.integers(1, 3)
any_steps = st.lists(
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
few, partitions = st.sampled_from(["a", "b"]), st.integers(0, 1)
ERASING: list[tuple[Any, ...]] = [
    *((what, broker) for broker in (1, 2, 3) for what in ("register", "unfence")),
    *(("create", name, 2, 2, True) for name in ("a", "b")),
    *(("catalog", "a", partition) for partition in (0, 1, 0)),
    ("erase", 1, frozenset({"a", "b"})),
]
erasing_steps = st.lists(
    st.one_of(
        st.tuples(st.just("rewrite"), few, partitions),
        st.tuples(st.just("rewrite"), st.just("a"), st.just(0)),
        st.tuples(st.just("give up"), few, partitions),
        st.tuples(st.just("erase"), st.integers(1, 2), st.frozensets(few, min_size=1)),
        st.tuples(st.just("erased"), st.integers(1, 2), few, partitions, st.integers(-1, 3)),
        st.tuples(st.just("all erased"), st.just("a")),
        st.tuples(st.just("all erased"), few),
        st.tuples(st.just("finish"), st.integers(1, 2)),
        st.tuples(st.just("remove"), st.just(2)),
        st.tuples(st.just("move"), st.just("a"), partitions, st.sampled_from([0, 1, 1, 2])),
        st.tuples(st.just("move"), few, partitions, st.sampled_from([0, 1, 1, 2])),
        st.tuples(st.just("delete"), st.just("b")),
        st.tuples(st.just("register"), brokers),
        st.tuples(st.just("fence"), brokers),
        st.tuples(st.just("unfence"), brokers),
    ),
    min_size=10,
    max_size=30,
).map(lambda script: ERASING + script)
steps = st.one_of(any_steps, erasing_steps)


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
                        registration(broker, incarnation_id=UUID(int=100 * broker + image.offset % 2)),
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
            case ("fence" | "unfence" | "producer ids" as what, broker):
                epoch = image.brokers[broker].epoch if broker in image.brokers else -1
                if what == "fence":
                    return at_once(fence_broker(image, broker, epoch))
                if what == "unfence":
                    return at_once(unfence_broker(image, broker, epoch))
                return allocate_producer_ids(image, broker, epoch)
        return self.decide_rewrites(step)

    def decide_rewrites(self, step: tuple[Any, ...]) -> ControllerResult[Any]:
        image = self.image
        match step:
            case ("rewrite", name, partition):
                return self.rewrite(name, partition)
            case ("give up", name, partition):
                tip = self.tip(name, partition)
                live = image.rewrites.get((tip.topic_id, tip.partition))
                rewrite_id = UUID(int=1) if live is None else live.rewrite_id
                return at_once(change_rewrites(image, [RewriteChange(tip, rewrite_id)]))
            case ("erase", number, chosen):
                topics = tuple(image.topics_by_name[name].id for name in sorted(chosen & names_of(image)))
                return at_once(start_erasure(image, order(number, topics)))
            case ("erased", number, name, partition, broker):
                tip = self.tip(name, partition)
                found = image.partition(tip.topic_id, partition)
                epoch = -1 if found is None else found.leader_epoch
                places = [ErasedPlace(tip.topic_id, partition, epoch)]
                return at_once(note_erased(image, [ErasedNotes(UUID(int=number), broker, places)]))
            case ("all erased", name):
                return self.all_erased(name)
            case ("finish", number):
                return at_once(finish_erasure(image, UUID(int=number), 9))
            case ("remove", number):
                return remove_erasure(image, UUID(int=number))
            case ("move", name, partition, to):
                return self.move(name, partition, to)
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

    def tip(self, name: str, partition: int) -> TopicIdPartition:
        topic = self.image.topics_by_name.get(name)
        return TopicIdPartition(UUID(int=5) if topic is None else topic.id, name, partition)

    def rewrite(self, name: str, partition: int) -> ControllerResult[Any]:
        """A rewrite begins or, where one lives, is committed."""
        tip = self.tip(name, partition)
        place = (tip.topic_id, partition)
        live, entry = live_rewrite(self.image, place), self.image.remote.get(place)
        if live is not None and entry is not None:
            after = entry._replace(version=entry.version + 1, manifest_key="r", segments=1)
            return commit_catalog(
                self.image,
                [CatalogCommit(tip, entry.version, after._replace(leader_epoch=live.leader_epoch), live[0])],
            )
        found = self.image.partition(*place)
        epoch = 0 if found is None else found.leader_epoch
        is_erased = any(one.is_open and place[0] in one.topics for one in self.image.erasures.values())
        kind = RewriteKind.ERASE if is_erased else RewriteKind.MERGE
        intent = RewriteIntent(next(self._uuids), 0, 9, kind, epoch, 3)
        return at_once(change_rewrites(self.image, [RewriteChange(tip, intent.rewrite_id, intent)]))

    def all_erased(self, name: str) -> ControllerResult[Any]:
        """All that is assigned tells of all orders."""
        topic = self.image.topics_by_name.get(name)
        if topic is None:
            return ControllerResult((), None)
        notes = [
            ErasedNotes(order_id, broker, [ErasedPlace(topic.id, number, partition.leader_epoch)])
            for order_id in sorted(self.image.erasures)
            for number, partition in topic.partitions.items()
            for broker in (*partition.replicas, -1)
        ]
        return at_once(note_erased(self.image, notes))

    def move(self, name: str, partition: int, to: int) -> ControllerResult[Any]:
        """A replica moves to another broker, the leader's disk is another, or it leads again."""
        tip = self.tip(name, partition)
        found = self.image.partition(tip.topic_id, partition)
        if found is None or not found.has_leader:
            return ControllerResult((), None)
        change: dict[str, Any] = {"leader": found.leader}
        if to == 0:
            change = {"directories": (UUID(int=self.image.offset), *found.directories[1:])}
        elif to == 1:
            others = [one for one in (1, 2, 3) if one not in found.replicas]
            replicas = (found.leader, *others[:1])
            directories = (UUID(int=90), *(UUID(int=91) for _ in others[:1]))
            change = {"replicas": replicas, "isr": (found.leader,), "directories": directories}
        record = PartitionChangeRecord(topic_id=tip.topic_id, partition_id=partition, **change)
        return ControllerResult((newest(record),), None)


def names_of(image: MetadataImage) -> set[str]:
    return set(image.topics_by_name)


def order(number: int, topics: tuple[UUID, ...]) -> Erasure:
    erasure_id = UUID(int=number)
    return Erasure(erasure_id, f"erase/{erasure_id}.json.gz", 9, 9, 1, topics, 7)


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


@settings(max_examples=50, deadline=None)
@given(steps)
def test_the_last_snapshot_published_over_any_earlier_image_is_that_moment(
    script: list[tuple[Any, ...]],
) -> None:
    *earlier, after = history_of(script).images
    for before in earlier:
        image, delta = at_once(apply_snapshot(before, after))
        same(image, after)
        assert image.index == after.index
        assert differing(before.rewrites, after.rewrites) <= delta.rewrites
        orders = differing(before.erasures, after.erasures) | differing(before.erased, after.erased)
        assert orders <= delta.erasures


def differing(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> set[Any]:
    return {key for key in {*one, *other} if one.get(key) != other.get(key)}


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
    assert all(live_rewrite(image, key) == intent for key, intent in image.rewrites.items())
    assert set(image.erased) <= set(image.erasures)
    for notes in image.erased.values():
        assert notes
        for key, clean in notes.items():
            assert clean
            replicas = image.topics_by_id[key[0]].partitions[key[1]].replicas
            assert clean <= {-1, *replicas}, "a note goes with its replica"
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
