"""A random life of one to five brokers: whatever happens in it, its partitions stay sound."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import RequestError
from service.base.steps import Steps, at_once
from service.metadata.batches import decode_batches, encode_batch
from service.metadata.controller.activation import activate
from service.metadata.controller.broker_sessions import (
    BrokerAtClaim,
    BrokerControl,
    BrokerRegistered,
    BrokerSessions,
    FencingDecided,
    HeartbeatReceived,
    SessionClosed,
    SessionTimes,
)
from service.metadata.controller.cluster_control import register_broker, unregister_broker
from service.metadata.controller.configs_control import incremental_alter_configs
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.elections_control import (
    ElectionSettings,
    balance_leaders,
    elect_leaders,
    elect_unclean_leaders,
)
from service.metadata.controller.heartbeat_control import fence_broker, process_heartbeat
from service.metadata.controller.isr_control import alter_partitions
from service.metadata.controller.reassignment_control import alter_reassignments, list_reassignments
from service.metadata.controller.requests import (
    AlterConfig,
    AlterPartition,
    AlterResource,
    BrokerHeartbeat,
    BrokerState,
    ConfigOperation,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    ReassignPartition,
    ResourceType,
    TopicDefaults,
)
from service.metadata.controller.topics_control import create_topics, delete_topics
from service.metadata.delta import MetadataDelta
from service.metadata.features import CATALOG_VERSION, ELR_VERSION, cluster_features
from service.metadata.image import (
    KRAFT_VERSION,
    METADATA_VERSION,
    FeatureRange,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from service.metadata.image_diff import apply_snapshot
from service.metadata.image_frames import image_frames
from service.metadata.partition_index import PartitionIndex, has_member, leads, shelves
from service.metadata.publication import apply_batch
from service.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from tests.unit.metadata.controllers import CLUSTER_ID, AnyConfig, registration

SETTINGS = ElectionSettings(min_isr=2, checks_directories=True)
FEATURES = cluster_features()


class Life:
    """Controllers, one after the other, over one log."""

    def __init__(self, seed: int, *, min_isr_changes: int = 0) -> None:
        self.random = random.Random(seed)
        self.min_isr_changes = min_isr_changes
        self.kept = 0
        """partitions that only the ELR or the last known leader may lead, and that a change left so"""
        self.brokers = range(1, self.random.randint(1, 5) + 1)
        self.elr = self.random.random() < 0.7
        self.images = [MetadataImage()]
        self.log: list[bytearray] = []
        self.uuids = (UUID(int=self.random.getrandbits(128)) for _ in count())
        self.incarnations: dict[int, UUID] = {}
        self.cleanly_left: dict[int, int] = {}
        self.now_ms = 0
        self.epoch = 0
        self.claim()

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def claim(self) -> None:
        """Another controller takes over: it has the log, and nothing else."""
        self.epoch += 1
        levels = {METADATA_VERSION: 30, CATALOG_VERSION: 1, ELR_VERSION: int(self.elr)}
        bootstrap = [FeatureLevelRecord(name=n, feature_level=v) for n, v in levels.items()]
        self.apply(activate(self.image, bootstrap, min_isr=2, supported=FEATURES))
        self.sessions = BrokerSessions(SessionTimes())
        for broker in self.image.brokers.values():
            self.sessions.handle(BrokerAtClaim(broker.id, broker.epoch, broker.fenced), self.now_ms)

    def apply(self, decision: ControllerResult[Any] | Steps[ControllerResult[Any]]) -> Any:
        decided = decision if isinstance(decision, ControllerResult) else at_once(decision)
        if decided.frames:
            delta = MetadataDelta(self.image).replay_all(frame.record for frame in decided.frames)
            offset = self.image.offset + len(decided.frames)
            self.images.append(delta.build(offset, self.epoch, self.now_ms))
            self.log.append(
                encode_batch(
                    decided.frames,
                    base_offset=self.image.offset + 1 - len(decided.frames),
                    epoch=self.epoch,
                    timestamp_ms=self.now_ms,
                )
            )
            check_changes(self.images[-2], self.image, decided)
        return decided.response

    def step(self) -> None:
        self.now_ms += self.random.randint(0, 3000)
        broker = self.random.choice(self.brokers)
        act = self.random.choice(
            [self.heartbeat] * 6
            + [self.start] * 2
            + [self.isr] * 4
            + [self.stop, self.fence, self.topic, self.topic, self.elections, self.move]
            + ([lambda _: self.claim()] if self.random.random() < 0.2 else [])
            + [self.alter_min_isr] * self.min_isr_changes
            + ([self.unregister] if self.random.random() < 0.1 else [])
        )
        with suppress(RequestError):
            act(broker)
        check(self.image, self.elr)

    def start(self, broker: int) -> None:
        """A new process: after a crash, or after a clean stop."""
        self.incarnations[broker] = UUID(int=self.random.getrandbits(128))
        existing = self.image.brokers.get(broker)
        alive = existing is not None and self.sessions.is_alive(broker, existing.epoch, self.now_ms)
        previous = self.cleanly_left.pop(broker, -1)
        request = registration(
            broker,
            incarnation_id=self.incarnations[broker],
            log_dirs=(UUID(int=1000 + broker), UUID(int=2000 + broker)),
            features=FEATURES,
            previous_epoch=previous,
        )
        epoch = self.apply(
            register_broker(
                self.image,
                request,
                cluster_id=CLUSTER_ID,
                next_offset=self.image.offset + 1,
                has_session=alive,
                settings=SETTINGS,
            )
        )
        self.sessions.handle(BrokerRegistered(broker, epoch), self.now_ms)
        if self.elr and (existing is None or previous != existing.epoch):
            for topic in self.image.topics_by_id.values():
                for state in topic.partitions.values():
                    assert broker not in state.isr, "it was stopped uncleanly"
                    assert broker not in state.eligible_leader_replicas

    def heartbeat(self, broker: int, *, stops: bool = False) -> None:
        known = self.image.brokers.get(broker)
        epoch = -1 if known is None else known.epoch
        offset = self.image.offset if self.random.random() < 0.9 else epoch - 1
        offline = (UUID(int=2000 + broker),) if self.random.random() < 0.02 else ()
        request = BrokerHeartbeat(broker, epoch, offset, wants_shut_down=stops, offline_log_dirs=offline)
        if known is not None:
            self.sessions.handle(HeartbeatReceived(broker, epoch, offset), self.now_ms)
        current, following = self.sessions.next_state(
            request,
            is_fenced=known is None or known.fenced,
            leads=self.image.index.has_any(leads(broker)),
            registered_at=epoch,
        )
        self.apply(process_heartbeat(self.image, request, current, following, SETTINGS))
        if following is BrokerControl.CONTROLLED_SHUTDOWN:
            self.sessions.note_controlled_shutdown(broker, epoch, self.image.offset)
        elif following is BrokerControl.SHUTDOWN_NOW:
            self.sessions.handle(SessionClosed(broker, epoch), self.now_ms)
            self.cleanly_left[broker] = epoch
            assert not self.image.index.has_any(leads(broker))
        elif following is not current:
            self.sessions.handle(
                FencingDecided(broker, epoch, following is BrokerControl.UNFENCED), self.now_ms
            )
            assert self.image.brokers[broker].fenced is (following is BrokerControl.FENCED)

    def stop(self, broker: int) -> None:
        for _ in range(4):
            self.heartbeat(broker, stops=True)

    def fence(self, broker: int) -> None:
        known = self.image.brokers.get(broker)
        if known is not None:
            self.apply(fence_broker(self.image, broker, known.epoch, settings=SETTINGS))
            self.sessions.handle(FencingDecided(broker, known.epoch, False), self.now_ms)

    def unregister(self, broker: int) -> None:
        epoch = self.apply(unregister_broker(self.image, broker, settings=SETTINGS))
        self.sessions.handle(SessionClosed(broker, epoch), self.now_ms)

    def topic(self, broker: int) -> None:
        name = f"t{self.random.randint(0, 3)}"
        if name in self.image.topics_by_name and self.random.random() < 0.3:
            self.apply(delete_topics(self.image, [DeleteTopic(name)], now_ms=self.now_ms))
            return
        configs = (("unclean.leader.election.enable", "true"),) if self.random.random() < 0.3 else ()
        request = CreateTopic(name, self.random.randint(1, 9), self.random.randint(1, 3), configs=configs)
        self.apply(
            create_topics(
                self.image,
                [request],
                defaults=TopicDefaults(),
                rules=AnyConfig(),
                new_uuid=self.uuids.__next__,
            )
        )

    def alter_min_isr(self, broker: int) -> None:
        """Of a topic or of all, to something else or to what it was: who could be elected still can."""
        names = sorted(self.image.topics_by_name)
        if not names or self.random.random() < 0.3:
            change = AlterConfig("min.insync.replicas", ConfigOperation.SET, str(self.random.randint(1, 3)))
            resource = AlterResource(ResourceType.BROKER, "", (change,))
        else:
            value = self.random.choice((None, "1", "2", "3"))
            operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
            change = AlterConfig("min.insync.replicas", operation, value)
            resource = AlterResource(ResourceType.TOPIC, self.random.choice(names), (change,))
        before = self.image
        (result,) = self.apply(incremental_alter_configs(self.image, [resource], AnyConfig()))
        assert result.error.value == 0, result
        for topic in before.topics_by_id.values():
            for number, old in topic.partitions.items():
                new = self.image.partition(topic.id, number)
                assert new is not None
                assert electable(old) == electable(new), f"P17: {topic.name}-{number}: {old} becomes {new}"
                self.kept += not old.isr and bool(electable(old))

    def isr(self, broker: int) -> None:
        """A leader has some of its replicas in sync, and perhaps ones that may not be."""
        led = sorted(self.image.index.partitions(leads(broker)))
        if not led:
            return
        topic_id, number = self.random.choice(led)
        state = self.image.partition(topic_id, number)
        assert state is not None
        members = [one for one in state.replicas if one == broker or self.random.random() < 0.7]
        epochs = {one: self.image.brokers[one].epoch for one in members if one in self.image.brokers}
        request = AlterPartition(
            topic_id,
            number,
            state.leader_epoch,
            state.partition_epoch,
            tuple(BrokerState(one, epochs.get(one, -1)) for one in members),
        )
        epoch = self.image.brokers[broker].epoch
        (result,) = self.apply(alter_partitions(self.image, broker, epoch, [request], SETTINGS))
        if result.error.value == 0:
            assert set(result.isr) == set(members)
            assert all(self.image.brokers[one].is_active for one in result.isr)

    def move(self, broker: int) -> None:
        """Some partition goes elsewhere, or a move is called off."""
        names = sorted(self.image.topics_by_name)
        if not names:
            return
        name = self.random.choice(names)
        number = self.random.randrange(len(self.image.topics_by_name[name].partitions))
        aim = self.random.sample(self.brokers, self.random.randint(1, len(self.brokers)))
        request = ReassignPartition(name, number, tuple(aim) if self.random.random() < 0.7 else None)
        self.apply(alter_reassignments(self.image, [request], SETTINGS))
        told = {(one.topic, one.partition) for one in at_once(list_reassignments(self.image, None))}
        for topic in self.image.topics_by_id.values():
            for index, state in topic.partitions.items():
                assert state.is_moving == ((topic.name, index) in told)

    def elections(self, broker: int) -> None:
        which = self.random.randint(0, 3)
        if which == 0:
            self.apply(balance_leaders(self.image, SETTINGS))
        elif which == 1:
            self.apply(elect_unclean_leaders(self.image, SETTINGS))
        else:
            self.apply(elect_leaders(self.image, ElectLeaders(which - 2, None), SETTINGS))


def electable(state: PartitionImage) -> frozenset[int]:
    """Whom the partition waits for, where nobody leads it: one of them back, and it has a leader."""
    if state.has_leader:
        return frozenset()
    sole = state.last_known_elr if len(state.last_known_elr) == 1 else ()
    return frozenset(state.isr or state.eligible_leader_replicas or sole)


def min_isr_of(image: MetadataImage, topic: TopicImage, state: PartitionImage) -> int:
    """How many must be in sync for records to be committed."""
    own, of_all = (
        image.config(kind, name).get("min.insync.replicas")
        for kind, name in ((ResourceType.TOPIC, topic.name), (ResourceType.BROKER, ""))
    )
    return min(int(own or of_all or 2), max(len(topic.partitions[0].replicas), len(state.replicas)))


def check_changes(before: MetadataImage, after: MetadataImage, decided: ControllerResult[Any]) -> None:
    """Epochs rise, and a new leader had what was committed, or the change says that it recovers."""
    for frame in decided.frames:
        if not isinstance(frame.record, PartitionChangeRecord) or frame.record.topic_id is None:
            continue
        key = frame.record.topic_id, frame.record.partition_id
        old, new = before.partition(*key), after.partition(*key)
        assert old is not None
        assert new is not None
        assert new.partition_epoch > old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        if new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
            was_moved = old.is_moving and not new.is_moving  # to replicas that have just come into the ISR
            if new.has_leader and new.leader not in {*old.isr, *old.eligible_leader_replicas}:
                assert was_moved or new.leader_recovery_state == 1


def check(image: MetadataImage, elr: bool) -> None:
    toggles: dict[Any, dict[UUID, list[int]]] = {}
    for topic in image.topics_by_id.values():
        for number, state in topic.partitions.items():
            assert set(state.isr) | set(state.eligible_leader_replicas) <= set(state.replicas)
            assert not set(state.isr) & set(state.eligible_leader_replicas)
            assert state.isr or elr
            if elr and state.eligible_leader_replicas:
                assert len(state.isr) < min_isr_of(image, topic, state), "it lacks what is committed now"
            if state.has_leader:
                assert state.leader in state.isr
                assert image.brokers[state.leader].is_active
            for shelf in shelves(
                state.replicas,
                state.isr,
                state.eligible_leader_replicas,
                state.leader,
                state.directories,
                adding=state.adding_replicas,
                is_moving=state.is_moving,
            ):
                toggles.setdefault(shelf, {}).setdefault(topic.id, []).append(number)
    assert image.index == PartitionIndex().toggled(toggles), "the index says what the partitions say"
    for broker in image.brokers.values():
        if not broker.is_active:
            assert not image.index.has_any(leads(broker.id))
        for topic_id, number in image.index.partitions(has_member(broker.id)):
            assert image.partition(topic_id, number) is not None


def replayed(life: Life, start: MetadataImage) -> Iterator[MetadataImage]:
    image = start
    for encoded in life.log:
        for batch in decode_batches(encoded):
            if batch.base_offset > image.offset:
                image, _ = apply_batch(image, batch)
        yield image


@pytest.mark.parametrize("seed", range(40))
def test_a_life_of_a_cluster(seed: int) -> None:
    print(f"seed {seed}")
    life = Life(seed)
    for _ in range(120):
        life.step()
    *_, again = replayed(life, MetadataImage())
    assert again == life.image, "whoever replays the log has the same image"
    at = life.random.choice(life.images)
    snapshot = MetadataDelta(MetadataImage()).replay_all(frame.record for frame in image_frames(at))
    restored = snapshot.build(at.offset, at.epoch, at.timestamp_ms)
    assert restored == at
    *_, after = replayed(life, restored)
    assert after == life.image, "also from a snapshot on"


@pytest.mark.parametrize("first", range(100, 180, 20))
def test_no_change_of_min_isr_makes_a_partition_leaderless_for_ever(first: int) -> None:
    kept = 0
    for seed in range(first, first + 20):
        print(f"seed {seed}")
        life = Life(seed, min_isr_changes=6)
        for _ in range(120):
            life.step()
        kept += life.kept
    assert kept, "some waited for their leader as it changed"


@pytest.mark.parametrize("seed", range(40, 60))
def test_the_difference_of_two_images_makes_one_of_the_other(seed: int) -> None:
    print(f"seed {seed}")
    life = Life(seed)
    for _ in range(120):
        life.step()
    for _ in range(10):
        older, newer = sorted(life.random.sample(life.images, 2), key=lambda image: image.offset)
        image, delta = at_once(apply_snapshot(older, newer))
        assert image == newer
        assert delta.image.offset == older.offset
        assert set(delta.deleted_topics) == set(older.topics_by_id) - set(newer.topics_by_id)


def test_features_that_a_broker_lacks_are_found_by_name() -> None:
    life = Life(1)
    request = registration(9, features=(FeatureRange(METADATA_VERSION, 30, 30),))
    with pytest.raises(RequestError, match=r"does not support finalized version 1 of .*version"):
        life.apply(
            register_broker(life.image, request, cluster_id=CLUSTER_ID, next_offset=5, has_session=False)
        )
    life.images.append(life.image.with_kraft_version(1))
    others = tuple(one for one in FEATURES if one.name != KRAFT_VERSION)
    with pytest.raises(RequestError, match=KRAFT_VERSION):
        life.apply(
            register_broker(
                life.image,
                registration(9, features=others),
                cluster_id=CLUSTER_ID,
                next_offset=5,
                has_session=False,
            )
        )
