"""ISRs that leaders change, elections that are asked for, directories that fail, features."""

from __future__ import annotations

import gc
import random
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps, at_once
from service.metadata.batches import encode_batch_in_steps
from service.metadata.controller.configs_control import incremental_alter_configs
from service.metadata.controller.decision import ControllerResult, QuorumLevel
from service.metadata.controller.directories_control import assign_replicas, take_offline
from service.metadata.controller.elections_control import (
    ElectionSettings,
    balance_leaders,
    elect_leaders,
    elect_unclean_leaders,
)
from service.metadata.controller.features_control import FeatureUpdate, UpgradeType, update_features
from service.metadata.controller.heartbeat_control import fence_broker, unfence_broker
from service.metadata.controller.isr_control import alter_partitions
from service.metadata.controller.partition_change import UNASSIGNED, ElectionRules, change_partition
from service.metadata.controller.partitions_control import create_partitions
from service.metadata.controller.requests import (
    AlterConfig,
    AlterPartition,
    AlterResource,
    AssignReplica,
    BrokerState,
    CreatePartitions,
    CreateTopic,
    ElectLeaders,
    TopicDefaults,
)
from service.metadata.controller.topics_control import create_topics
from service.metadata.delta import MetadataDelta
from service.metadata.features import CATALOG_VERSION, ELR_VERSION, cluster_features
from service.metadata.image import KRAFT_VERSION, METADATA_VERSION, MetadataImage, PartitionImage
from service.metadata.records import (
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from service.metadata.topics_delta import changed_partition
from tests.unit.metadata.controllers import AnyConfig

TOPIC_ID = UUID(int=0xABCDEF << 90)
SETTINGS = ElectionSettings(checks_directories=True)
FEATURES = tuple(
    BrokerFeature(name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level)
    for f in cluster_features()
)


def directory(broker_id: int, number: int = 0) -> UUID:
    return UUID(int=1000 * (number + 1) + broker_id)


def broker(broker_id: int, *, fenced: bool = False) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=broker_id),
        broker_epoch=10 * broker_id,
        end_points=(),
        features=FEATURES,
        rack=None,
        fenced=fenced,
        log_dirs=(directory(broker_id), directory(broker_id, 1)),
    )


def partition(
    number: int, replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, **more: Any
) -> PartitionRecord:
    fields: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "leader_epoch": 5,
        "partition_epoch": 7,
        "directories": tuple(directory(one) for one in replicas),
    }
    return PartitionRecord(
        partition_id=number, replicas=replicas, isr=isr, leader=leader, **{**fields, **more}
    )


def image_of(*records: MetadataRecord, elr: bool = True) -> MetadataImage:
    levels = [FeatureLevelRecord(name=METADATA_VERSION, feature_level=30)]
    if elr:
        levels.append(FeatureLevelRecord(name=ELR_VERSION, feature_level=1))
    topic = TopicRecord(name="t", topic_id=TOPIC_ID)
    brokers = [one for one in records if isinstance(one, RegisterBrokerRecord)]
    others = [one for one in records if not isinstance(one, RegisterBrokerRecord)]
    delta = MetadataDelta(MetadataImage()).replay_all([*levels, *brokers, topic, *others])
    return delta.build(99, 1, 0)


def applied(
    image: MetadataImage, decision: ControllerResult[Any] | Steps[ControllerResult[Any]]
) -> tuple[MetadataImage, Any]:
    made = decision if isinstance(decision, ControllerResult) else at_once(decision)
    delta = MetadataDelta(image).replay_all(frame.record for frame in made.frames)
    return delta.build(image.offset + len(made.frames), 1, 0), made.response


def state_of(image: MetadataImage, number: int = 0) -> PartitionImage:
    state = image.partition(TOPIC_ID, number)
    assert state is not None
    return state


THREE = (broker(1), broker(2), broker(3))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic_id": UUID(int=1)}, ErrorCode.unknown_topic_id),
        ({"partition": 9}, ErrorCode.unknown_topic_or_partition),
        ({"leader_epoch": 6}, ErrorCode.not_controller),
        ({"partition_epoch": 8}, ErrorCode.not_controller),
        ({"leader_epoch": 4}, ErrorCode.fenced_leader_epoch),
        ({"partition": 1}, ErrorCode.invalid_request),
        ({"partition_epoch": 6}, ErrorCode.invalid_update_version),
        ({"isr": (BrokerState(2),)}, ErrorCode.invalid_request),
        ({"isr": (BrokerState(1), BrokerState(1))}, ErrorCode.invalid_request),
        ({"isr": (BrokerState(1), BrokerState(9))}, ErrorCode.invalid_request),
        ({"isr": ()}, ErrorCode.invalid_request),
        ({"isr": (BrokerState(1),), "recovery": 1}, ErrorCode.invalid_request),
        ({"isr": (BrokerState(1),), "recovery": 2}, ErrorCode.invalid_request),
        ({"isr": (BrokerState(1), BrokerState(4))}, ErrorCode.ineligible_replica),
        ({"isr": (BrokerState(1), BrokerState(2, 21))}, ErrorCode.ineligible_replica),
        ({"isr": (BrokerState(1), BrokerState(2, 20))}, ErrorCode.none),
        ({"isr": (BrokerState(1),)}, ErrorCode.none),
    ],
)
def test_alter_partition_applies_or_refuses_proposed_isrs(changes: dict[str, Any], error: ErrorCode) -> None:
    replicas = (1, 2, 4)
    image = image_of(
        *THREE,
        broker(4, fenced=True),
        partition(0, replicas, (1, 2), 1),
        partition(1, replicas, (1, 2), 2),
    )
    asked = AlterPartition(TOPIC_ID, 0, 5, 7, (BrokerState(1), BrokerState(2)))
    after, (result,) = applied(image, alter_partitions(image, 1, 10, [asked._replace(**changes)], SETTINGS))
    assert result.error is error
    if error is ErrorCode.none:
        assert result.isr == state_of(after).isr == tuple(one.broker_id for one in changes["isr"])
        assert result.leader_epoch == 5, "an ISR that shrinks begins no leader epoch"
    else:
        assert after.topics_by_id == image.topics_by_id
    with pytest.raises(RequestError) as refused:
        at_once(alter_partitions(image, 1, 11, [asked], SETTINGS))
    assert refused.value.code is ErrorCode.stale_broker_epoch


def test_a_second_change_in_one_request_sees_the_first() -> None:
    image = image_of(*THREE, partition(0, (1, 2, 3), (1, 2, 3), 1))
    first = AlterPartition(TOPIC_ID, 0, 5, 7, (BrokerState(1), BrokerState(2)))
    second = first._replace(partition_epoch=8, isr=(BrokerState(1),))
    after, results = applied(image, alter_partitions(image, 1, 10, [first, first, second], SETTINGS))
    assert [one.error for one in results] == [
        ErrorCode.none,
        ErrorCode.invalid_update_version,
        ErrorCode.none,
    ]
    assert (state_of(after).isr, state_of(after).partition_epoch) == ((1,), 9)


def test_elect_leaders_elects_or_refuses_requested_partitions() -> None:
    image = image_of(
        *THREE,
        broker(4, fenced=True),
        partition(0, (1, 2), (1, 2), 1),
        partition(1, (1, 2), (2, 1), 2),
        partition(2, (4, 2), (2,), 2),
        partition(3, (4, 2), (4,), -1),
        partition(4, (4,), (4,), -1),
        elr=False,
    )

    def asked(kind: int, *numbers: int) -> tuple[MetadataImage, list[ErrorCode]]:
        request = ElectLeaders(kind, tuple(("t", number) for number in numbers))
        after, results = applied(image, elect_leaders(image, request, SETTINGS))
        return after, [one.error for one in results]

    after, errors = asked(0, 0, 1, 2, 9)
    assert errors == [
        ErrorCode.election_not_needed,
        ErrorCode.none,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert (state_of(after, 1).leader, state_of(after, 1).leader_epoch) == (1, 6)
    after, errors = asked(1, 0, 3, 4)
    assert errors == [
        ErrorCode.election_not_needed,
        ErrorCode.none,
        ErrorCode.eligible_leaders_not_available,
    ]
    recovering = state_of(after, 3)
    assert (recovering.leader, recovering.isr, recovering.leader_recovery_state) == (2, (2,), 1)
    _, results = applied(image, elect_leaders(image, ElectLeaders(0, None), SETTINGS))
    assert [one.partition for one in results] == [1, 2, 3, 4], "those that need none are not told"
    with pytest.raises(RequestError) as refused:
        at_once(elect_leaders(image, ElectLeaders(7, None), SETTINGS))
    assert refused.value.code is ErrorCode.invalid_request


def test_preferred_leaders_are_restored_without_unclean_elections() -> None:
    image = image_of(*THREE, partition(0, (1, 2), (2, 1), 2), partition(1, (1, 3), (9,), -1), elr=False)
    after, there_is_more = applied(image, balance_leaders(image, SETTINGS))
    assert (state_of(after).leader, state_of(after, 1).leader, there_is_more) == (1, -1, False)
    after, _ = applied(after, elect_unclean_leaders(after, SETTINGS))
    assert state_of(after, 1).leader == -1
    unclean = ConfigRecord(
        resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"
    )
    allowed = MetadataDelta(after).replay_all([unclean]).build(200, 1, 0)
    elected, _ = applied(allowed, elect_unclean_leaders(allowed, SETTINGS))
    assert state_of(elected, 1).leader == 1
    per_node, _ = applied(after, elect_unclean_leaders(after, SETTINGS._replace(allows_unclean=True)))
    assert state_of(per_node, 1).leader == 1


def test_replicas_of_a_failed_directory_lose_their_leadership() -> None:
    image = image_of(
        *THREE,
        partition(0, (1, 2), (1, 2), 1),
        partition(1, (1, 2), (1, 2), 1, directories=(directory(1, 1), directory(2))),
    )
    after, _ = applied(image, take_offline(image, 1, {directory(1)}, settings=SETTINGS))
    assert (state_of(after).leader, state_of(after).isr) == (2, (2,))
    assert (state_of(after, 1).leader, state_of(after, 1).isr) == (1, (1, 2))
    assert after.brokers[1].log_dirs == (directory(1, 1),)
    again, _ = applied(after, take_offline(after, 1, {directory(1)}, settings=SETTINGS))
    assert again.offset == after.offset, "it is known"


def test_brokers_tell_where_their_replicas_lie() -> None:
    image = image_of(*THREE, partition(0, (1, 2), (1, 2), 1), partition(1, (2, 3), (2, 3), 2))
    gone = UUID(int=77_777)
    asked = [
        AssignReplica(directory(1, 1), TOPIC_ID, 0),
        AssignReplica(directory(1, 1), TOPIC_ID, 1),
        AssignReplica(directory(1, 1), TOPIC_ID, 8),
        AssignReplica(directory(1, 1), UUID(int=5), 0),
    ]
    after, results = applied(image, assign_replicas(image, 1, 10, asked, SETTINGS))
    assert [one.error for one in results] == [
        ErrorCode.none,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    ]
    assert state_of(after).directories == (directory(1, 1), directory(2))
    assert state_of(after).leader == 1
    moved, _ = applied(after, assign_replicas(after, 1, 10, [AssignReplica(gone, TOPIC_ID, 0)], SETTINGS))
    assert (state_of(moved).leader, state_of(moved).isr) == (2, (2,))


def test_a_broker_with_several_directories_places_new_partitions_itself() -> None:
    """UNASSIGNED, and not what stands for a directory that is not known yet: a broker that has lost one of
    several may have the replica there, and makes none in that case."""
    alone = replace(broker(3), log_dirs=(directory(3),))
    image = image_of(broker(1), alone, partition(0, (1, 3), (1, 3), 1))
    created = create_topics(
        image, [CreateTopic("new", assignments=((0, (1, 3)),))], defaults=TopicDefaults(), rules=AnyConfig(),
        new_uuid=lambda: UUID(int=9),
    )  # fmt: skip
    after, (made,) = applied(image, created)
    assert made.error is ErrorCode.none
    grown, (one,) = applied(after, create_partitions(after, [CreatePartitions("new", 2, ((3, 1),))]))
    assert one.error is ErrorCode.none
    topic = grown.topics_by_id[UUID(int=9)]
    assert topic.partitions[0].directories == (UNASSIGNED, directory(3))
    assert topic.partitions[1].directories == (directory(3), UNASSIGNED)


def test_a_replica_on_a_new_disk_leads_if_no_other_replica_may() -> None:
    before = UUID(int=77_777)  # of the disk that was lost; the broker has registered without it
    image = image_of(
        *THREE,
        partition(0, (1,), (1,), -1, directories=(before,)),
        partition(1, (1, 2), (1,), -1, directories=(before, directory(2))),
    )
    asked = [AssignReplica(directory(1), TOPIC_ID, number) for number in (0, 1)]
    after, _ = applied(image, assign_replicas(image, 1, 10, asked, SETTINGS))
    assert [state_of(after, number).leader for number in (0, 1)] == [1, 1]
    assert [state_of(after, number).isr for number in (0, 1)] == [(1,), (1,)]


def test_eligible_leaders_need_one_number_that_all_go_by() -> None:
    own = ConfigRecord(resource_type=4, resource_name="2", name="min.insync.replicas", value="1")
    image = image_of(*THREE, partition(0, (1,), (1,), 1), own, elr=False)
    decision = update_features(
        image, [FeatureUpdate(ELR_VERSION, 1)], node_id=9, supported=cluster_features(), min_isr=2
    )
    after, _ = applied(image, decision)
    assert after.config(4, "") == {"min.insync.replicas": "2"}
    assert after.config(4, "2") == {}
    assert after.features[ELR_VERSION] == 1


def test_a_changed_min_isr_recomputes_the_eligible_leaders() -> None:
    image = image_of(*THREE, partition(0, (1, 2), (1,), 1, eligible_leader_replicas=(2,)))

    def altered(kind: int, name: str, operation: int, on: MetadataImage) -> tuple[MetadataImage, ErrorCode]:
        change = AlterConfig("min.insync.replicas", operation, "1" if operation == 0 else None)
        resources = [AlterResource(kind, name, (change,))]
        after, (result,) = applied(on, incremental_alter_configs(on, resources, AnyConfig()))
        return after, result.error

    for kind, name in ((2, "t"), (4, "")):
        after, error = altered(kind, name, 0, image)
        assert error is ErrorCode.none
        assert state_of(after).eligible_leader_replicas == ()
    assert altered(4, "", 1, after)[1] is ErrorCode.invalid_config, "the cluster's number stays"
    assert altered(4, "2", 0, image)[1] is ErrorCode.invalid_config, "and no broker has another"
    plain = image_of(*THREE, partition(0, (1, 2), (1,), 1), elr=False)
    assert altered(4, "2", 0, plain)[1] is ErrorCode.none


def test_eligible_leaders_go_by_their_own_partitions_replicas() -> None:
    """A reassignment has left partition 0 with one replica: the others' leaders still wait for two."""
    image = image_of(
        *THREE,
        partition(0, (1,), (1,), 1),
        partition(1, (2, 3), (2, 3), 2),
        ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"),
    )
    after, _ = applied(image, fence_broker(image, 3, 30))
    assert (state_of(after, 1).isr, state_of(after, 1).eligible_leader_replicas) == ((2,), (3,))


def refused(image: MetadataImage, *updates: FeatureUpdate, **more: Any) -> str:
    with pytest.raises(RequestError) as error:
        update_features(image, updates, node_id=9, **{"supported": cluster_features(), **more})
    assert error.value.code is ErrorCode.invalid_update_version
    return error.value.message or ""


@pytest.mark.parametrize("heard", [(), (1,), (2,), (3,)])
def test_fencing_does_not_shrink_an_isr_of_brokers_that_were_never_heard(heard: tuple[int, ...]) -> None:
    """They may all have died before it was elected: whichever comes back has everything."""
    image = image_of(*THREE, partition(0, (1, 2), (1, 2), 1))

    def is_heard(broker_id: int, epoch: int) -> bool:
        return broker_id in heard and epoch == broker_id * 10

    after, _ = applied(image, fence_broker(image, 1, 10, is_heard=is_heard))
    state = state_of(after)
    if set(heard) & {1, 2}:
        assert (state.leader, state.isr) == (2, (2,)), "one of them lived: what it has acknowledged counts"
        return
    assert (state.leader, state.isr) == (2, (1, 2))
    after, _ = applied(after, fence_broker(after, 2, 20, is_heard=is_heard))
    assert (state_of(after).leader, state_of(after).isr) == (-1, (1, 2))
    for back in (1, 2):
        led, _ = applied(after, unfence_broker(after, back, back * 10))
        assert (state_of(led).leader, state_of(led).isr) == (back, (1, 2))


def test_features_that_cannot_go_there() -> None:
    image = image_of(*THREE, partition(0, (1,), (1,), 1))
    assert "only supports versions 0-1" in refused(image, FeatureUpdate(ELR_VERSION, 2))
    assert "does not support" in refused(image, FeatureUpdate(KRAFT_VERSION, 1), supported=())
    assert "controller 8 has not registered" in refused(
        image, FeatureUpdate(CATALOG_VERSION, 1), voters=(8, 9)
    )
    down = FeatureUpdate(KRAFT_VERSION, 0, UpgradeType.SAFE_DOWNGRADE)
    said = refused(image, down, kraft_version=1)
    assert said.endswith("Can't downgrade the version of this feature.")
    assert "without setting the upgrade type" in refused(
        image, down._replace(upgrade_type=UpgradeType.UPGRADE), kraft_version=1
    )
    up = FeatureUpdate(KRAFT_VERSION, 1, UpgradeType.UNSAFE_DOWNGRADE)
    assert refused(image, up).endswith("Can't downgrade to a newer version.")


def test_the_quorums_level_is_raised_beside_the_metadata() -> None:
    image = image_of(*THREE, partition(0, (1,), (1,), 1))

    def decided(*updates: FeatureUpdate, **more: Any) -> tuple[list[Any], QuorumLevel | None]:
        decision = update_features(image, updates, node_id=9, supported=cluster_features(), **more)
        return [frame.record for frame in decision.frames], decision.quorum_level

    raised = FeatureUpdate(KRAFT_VERSION, 1)
    assert decided(raised) == ([NoOpRecord()], QuorumLevel(1))
    assert decided(raised, validate_only=True) == ([], QuorumLevel(1, validate_only=True))
    catalog = FeatureLevelRecord(name=CATALOG_VERSION, feature_level=1)
    assert decided(raised, FeatureUpdate(CATALOG_VERSION, 1)) == ([catalog, NoOpRecord()], QuorumLevel(1))
    assert decided(raised, kraft_version=1) == ([NoOpRecord()], QuorumLevel(1)), "as it is"
    as_it_is = FeatureUpdate(KRAFT_VERSION, 1, UpgradeType.SAFE_DOWNGRADE)
    assert decided(as_it_is, kraft_version=1) == ([], None)
    assert decided(FeatureUpdate(CATALOG_VERSION, 1)) == ([catalog], None)


def test_fencing_costs_what_the_broker_has() -> None:
    """Printed, not held against a clock: what 10,000 partitions of one broker take, and the longest step."""
    generator = random.Random(5)
    ids = [UUID(int=generator.getrandbits(128)) for _ in range(100)]
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=30),
        FeatureLevelRecord(name=ELR_VERSION, feature_level=1),
        *THREE,
        broker(4),
    ]
    for number, topic_id in enumerate(ids):
        records.append(TopicRecord(name=f"t{number}", topic_id=topic_id))
        records += [
            partition(
                n, (1 + n % 3, 1 + (n + 1) % 3, 1 + (n + 2) % 3), (1, 2, 3), 1 + n % 3, topic_id=topic_id
            )
            for n in range(100)
        ]
    image = MetadataDelta(MetadataImage()).replay_all(records).build(20_000, 1, 0)
    assert at_once(fence_broker(image, 4, 40)).frames[0].record.API_KEY == 17, "broker 4 has none"
    spent: dict[str, tuple[float, float]] = {}
    gc.disable()  # a node decides itself when

    def timed(what: str, steps: Steps[Any]) -> Any:
        began = last = time.thread_time()
        longest = 0.0
        while True:
            try:
                next(steps)
            except StopIteration as e:
                spent[what] = (time.thread_time() - began, longest)
                return e.value
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    decision = timed("decide", fence_broker(image, 1, 10))
    assert len(decision.frames) == 10_001
    delta = timed("replay", MetadataDelta(image).replay_in_steps(f.record for f in decision.frames))
    after = timed("build", delta.build_in_steps(30_001, 1, 0))
    timed("encode", encode_batch_in_steps(decision.frames, base_offset=0, epoch=1, timestamp_ms=0))
    gc.enable()
    total_ms = 1000 * sum(seconds for seconds, _ in spent.values())
    parts = {what: (round(1000 * s, 1), round(1000 * longest, 2)) for what, (s, longest) in spent.items()}
    print(f"fencing 10,000 partitions: {total_ms:.0f} ms of CPU; (ms, longest step in ms): {parts}")
    assert all(
        state.leader in (2, 3) and state.isr == (2, 3)
        for topic in after.topics_by_id.values()
        for state in topic.partitions.values()
    )


@pytest.mark.parametrize(("min_isr", "eligible"), [(1, ()), (2, (2, 3))])
def test_electing_from_the_elr_clears_it_if_one_replica_meets_min_isr(
    min_isr: int, eligible: tuple[int, ...]
) -> None:
    """`min.insync.replicas` became 1 while nobody led: what the leader commits alone the others lack."""
    waiting = PartitionImage(
        replicas=(1, 2, 3),
        isr=(),
        leader=-1,
        leader_epoch=4,
        partition_epoch=9,
        directories=(UNASSIGNED,) * 3,
        eligible_leader_replicas=(1, 2, 3),
        last_known_elr=(3,),
    )
    rules = ElectionRules(min_isr, is_elr_enabled=True, first_replicas=3)
    record = change_partition(TOPIC_ID, 0, waiting, rules, lambda replica: replica == 1)
    assert record is not None
    after = changed_partition(waiting, record)
    assert (after.leader, after.isr, after.eligible_leader_replicas) == (1, (1,), eligible)
    assert after.last_known_elr == ()
