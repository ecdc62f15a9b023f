"""Adoption of an archive by the metadata: what is taken over, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.steps import at_once
from service.metadata.controller.adoption_control import (
    EPOCH_MARGIN,
    PRODUCER_ID_MARGIN,
    Adoption,
    BucketContent,
    adopt,
    checked,
)
from service.metadata.controller.configs_control import incremental_alter_configs
from service.metadata.controller.recovered_topics import AdoptedPartition, AdoptedTopic, recovered_topics
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    ConfigOperation,
    ResourceType,
)
from service.metadata.delta import MetadataDelta
from service.metadata.features import CATALOG_VERSION
from service.metadata.image import MetadataImage, RecoveredTopic, RestoredTail
from service.metadata.image_frames import erased_records, erasure_record, restored_tail_record, rewrite_record
from service.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityData,
    RemoteLogRecord,
    TombstoneRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from service.remote.catalog import IN_BUCKET, CatalogEntry, Erasure, RewriteIntent, RewriteKind
from service.tiering.recovery import RecoveredArchive
from tests.unit.metadata.controllers import AnyConfig

ID, LIFE = UUID(int=7), UUID(int=70)


def entry(version: int, end: int = 100, key: str = "m") -> CatalogEntry:
    return CatalogEntry(version, f"{key}{version}", 3, 0, end, 1, 1000)


def topic(name: str = "events", topic_id: UUID = ID, **partitions: AdoptedPartition) -> AdoptedTopic:
    return AdoptedTopic(
        name,
        topic_id,
        2,
        {"remote.storage.enable": "true"},
        {int(number.removeprefix("p")): one for number, one in partitions.items()},
    )


def adopted(
    image: MetadataImage,
    *topics: AdoptedTopic,
    lost: MetadataImage | None = None,
    is_copy_newer: bool = True,
    life: int = 0,
    erasures: Sequence[Erasure] = (),
) -> tuple[MetadataImage, Adoption]:
    """`lost` is the copy of the metadata in the bucket."""
    found = BucketContent(topics, lost, lost is not None and is_copy_newer, 4999, life, erasures=erasures)
    decision = adopt(image, found, node_id=1, life_id=LIFE)
    delta = MetadataDelta(image).replay_all(frame.record for frame in decision.frames)
    after = delta.build(image.offset + len(decision.frames), 1, 0)
    assert after.transaction is None
    return after, decision.response


def known(own: CatalogEntry | None, leader_epoch: int = 5) -> MetadataImage:
    records: list[object] = [TopicRecord(name="events", topic_id=ID)]
    records += [
        PartitionRecord(
            partition_id=number, topic_id=ID, replicas=(1,), isr=(1,), leader=1,
            leader_epoch=leader_epoch, partition_epoch=0, directories=(UUID(int=50),),
        )
        for number in range(2)
    ]  # fmt: skip
    if own is not None:
        records.append(RemoteLogRecord(topic_id=ID, partition_id=0, **own._asdict()))
    return MetadataDelta(MetadataImage()).replay_all(records).build(10, 1, 0)  # type: ignore[arg-type]


def test_a_topic_known_only_to_the_archive_is_restored_under_its_id() -> None:
    image, adoption = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)))
    assert image.topics_by_name["events"].id == ID
    assert image.config(ResourceType.TOPIC, "events") == {"remote.storage.enable": "true"}
    assert image.remote.get((ID, 0)) == entry(4)
    first, second = image.topics_by_id[ID].partitions.values()
    assert (first.leader, first.isr, first.leader_epoch) == (-1, (1,), 9 + EPOCH_MARGIN)
    assert second.isr == (1,)
    assert image.next_producer_id == 5000 + PRODUCER_ID_MARGIN
    assert (adoption.topics, adoption.partitions) == (["events"], {(ID, 0)})


def test_an_older_entry_gives_way_and_its_leader_epoch_rises_above_both() -> None:
    image, adoption = adopted(known(entry(2, 40)), topic(p0=AdoptedPartition(entry(4), 9)))
    assert image.remote.get((ID, 0)) == entry(4)
    assert image.topics_by_id[ID].partitions[0].leader_epoch == 9 + EPOCH_MARGIN
    assert image.topics_by_id[ID].partitions[1].leader_epoch == 5 + EPOCH_MARGIN
    assert adoption.partitions == {(ID, 0)}


def test_an_entry_that_is_as_new_or_newer_stays() -> None:
    for own in (entry(4), entry(5, 120)):
        image, adoption = adopted(known(own), topic(p0=AdoptedPartition(entry(4), 3)))
        assert image.remote.get((ID, 0)) == own
        assert not adoption.partitions


def test_the_bucket_wins_over_the_catalog_with_another_manifest_of_the_same_version() -> None:
    image, _ = adopted(known(entry(4, key="clone")), topic(p0=AdoptedPartition(entry(4), 3)))
    assert image.remote.get((ID, 0)) == entry(4)


def test_adoption_keeps_deletions_and_refuses_a_second_topic_of_a_name() -> None:
    buried = TombstoneRecord(topic_id=ID, name="events", partitions=2, deleted_ms=0)
    image = MetadataDelta(MetadataImage()).replay_all([buried]).build(3, 1, 0)
    after, adoption = adopted(image, topic(p0=AdoptedPartition(entry(4), 3)))
    assert ID not in after.topics_by_id
    assert ID in after.tombstones
    after, adoption = adopted(known(None), topic(topic_id=UUID(int=8), p0=AdoptedPartition(entry(4), 3)))
    assert UUID(int=8) not in after.topics_by_id
    assert adoption.refused == [f"events ({UUID(int=8)}): another topic has that name here"]


def used(next_producer_id: int, leader_epoch: int) -> MetadataImage:
    """The last that the bucket has of the lost node's metadata."""
    record = ProducerIdsRecord(broker_id=1, next_producer_id=next_producer_id)
    return MetadataDelta(known(None, leader_epoch)).replay_all([record]).build(90, 1, 0)


def test_producer_ids_and_epochs_of_the_lost_snapshot_are_not_reused() -> None:
    """Ids and epochs of before may be in no segment: of a topic without records, or after a takeover."""
    lost = used(7_000_000_000, 4_000)
    image, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)), lost=lost)
    assert image.next_producer_id == 7_000_000_000 + PRODUCER_ID_MARGIN
    epochs = [one.leader_epoch for one in image.topics_by_id[ID].partitions.values()]
    assert epochs == [4_000 + EPOCH_MARGIN] * 2


def test_a_restored_disk_skips_ids_and_epochs_also_where_the_archive_holds_no_news() -> None:
    """The lost node went on after the backup, with idempotent producers whose records nobody archived."""
    before = known(entry(4), leader_epoch=5)
    image, adoption = adopted(before, topic(p0=AdoptedPartition(entry(4), 3)), lost=used(8_000, 7))
    assert not adoption.partitions
    assert image.next_producer_id == 8_000 + PRODUCER_ID_MARGIN
    assert [one.leader_epoch for one in image.topics_by_id[ID].partitions.values()] == [7 + EPOCH_MARGIN] * 2
    assert all(one.leader == -1 for one in image.topics_by_id[ID].partitions.values())


def test_a_topic_that_the_bucket_does_not_name_skips_epochs_too() -> None:
    image, _ = adopted(known(None, leader_epoch=5))
    assert [one.leader_epoch for one in image.topics_by_id[ID].partitions.values()] == [5 + EPOCH_MARGIN] * 2
    assert image.next_producer_id == 5000 + PRODUCER_ID_MARGIN


def test_repeated_takeovers_reuse_no_id() -> None:
    """Between them ids were given out and epochs begun that no segment tells of; the snapshot does."""
    first, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)))
    second, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)), lost=first)
    assert second.next_producer_id == first.next_producer_id + PRODUCER_ID_MARGIN
    for number in range(2):
        before, after = (one.topics_by_id[ID].partitions[number].leader_epoch for one in (first, second))
        assert after == before + EPOCH_MARGIN


def test_a_bucket_that_says_that_none_are_left_is_not_believed() -> None:
    with pytest.raises(CorruptionError, match="led in epoch 2147483647"):
        adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 2**31 - 1)))
    with pytest.raises(CorruptionError, match="all producer ids below 9223372036854775807"):
        adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 1)), lost=used(2**63 - 1, 1))


def setting(kind: ResourceType, resource: str, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=int(kind), resource_name=resource, name=name, value=value)


def image_of(*records: object, base: MetadataImage | None = None) -> MetadataImage:
    return MetadataDelta(base or MetadataImage()).replay_all(records).build(90, 1, 0)  # type: ignore[arg-type]


KEPT = topic(p0=AdoptedPartition(entry(4), 9))


def test_an_adoption_has_no_effect_before_it_is_complete() -> None:
    found = BucketContent([KEPT], None, False, 1, 0)
    frames = adopt(MetadataImage(), found, node_id=1, life_id=LIFE).frames
    for written in range(len(frames)):
        image = image_of(*(frame.record for frame in frames[:written]))
        assert not image.topics_by_id
        assert image.life == 0


def test_a_recovery_starts_a_life_above_all_known_ones() -> None:
    first, _ = adopted(MetadataImage(), KEPT)
    assert first.life == 1
    second, _ = adopted(MetadataImage(), KEPT, lost=first)
    assert second.life == 2
    third, _ = adopted(second, KEPT, life=7)
    assert third.life == 8


def test_broker_settings_are_restored_from_the_copy() -> None:
    every, one = (ResourceType.BROKER, ""), (ResourceType.BROKER, "1")
    lost = image_of(setting(*every, "log.retention.ms", "-1"), setting(*one, "log.retention.bytes", "7"))
    own = image_of(setting(*every, "log.retention.hours", "1"), setting(*every, "min.insync.replicas", "1"))
    image, _ = adopted(own, lost=lost)
    assert image.config(*every) == {"log.retention.ms": "-1", "min.insync.replicas": "1"}
    assert image.config(*one) == {"log.retention.bytes": "7"}
    image, _ = adopted(own, lost=lost, is_copy_newer=False)
    assert image.config(*every) == own.config(*every)


def test_a_topic_has_the_settings_of_the_copy_unless_ours_went_on_from_it() -> None:
    kept = KEPT._replace(configs={"retention.ms": "-1"})
    lost = known(entry(4))
    own = image_of(setting(ResourceType.TOPIC, "events", "retention.ms", "5"), base=lost)
    image, _ = adopted(own, kept, lost=lost)
    assert image.config(ResourceType.TOPIC, "events") == {"retention.ms": "-1"}
    image, _ = adopted(own, kept, lost=lost, is_copy_newer=False)
    assert image.config(ResourceType.TOPIC, "events") == {"retention.ms": "5"}


def test_a_topic_that_the_copy_knows_to_be_deleted_goes_and_one_made_again_takes_its_name() -> None:
    again = UUID(int=8)
    buried = TombstoneRecord(topic_id=ID, name="events", partitions=2, deleted_ms=5)
    lost = image_of(buried, TopicRecord(name="events", topic_id=again))
    image, adoption = adopted(known(entry(4)), topic(topic_id=again), lost=lost)
    assert image.topics_by_name["events"].id == again
    assert set(image.tombstones) == {ID}
    assert not image.remote
    assert (adoption.removed, adoption.refused) == (["events"], [])
    image, _ = adopted(MetadataImage(), topic(topic_id=again), lost=lost)
    assert set(image.tombstones) == {ID}, "what is to be deleted in the bucket is deleted"


def test_a_recreated_topic_replaces_its_predecessor_if_the_snapshot_copy_is_newer() -> None:
    again = UUID(int=8)
    lost = image_of(TopicRecord(name="events", topic_id=again))
    image, _ = adopted(known(entry(4)), topic(topic_id=again), lost=lost)
    assert image.topics_by_name["events"].id == again
    assert not image.tombstones, "nobody says that it was deleted"
    image, adoption = adopted(known(entry(4)), topic(topic_id=again), lost=lost, is_copy_newer=False)
    assert image.topics_by_name["events"].id == ID
    assert len(adoption.refused) == 1


def test_local_logs_are_to_be_compared_until_that_is_noted() -> None:
    image, adoption = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)))
    assert adoption.partitions == {(ID, 0)}
    assert image.recovered[ID] == RecoveredTopic((0,), False)
    done = checked(image, [(ID, 0), (UUID(int=99), 0)])
    after = image_of(*(frame.record for frame in done.frames), base=image)
    assert not after.recovered
    given_up = entry(4)._replace(start_offset=0, end_offset=0, segments=0)
    image, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(given_up, 9)))
    assert not image.recovered, "there is nothing to be compared with"


def test_altering_a_retention_key_marks_a_recovered_topics_settings_as_known() -> None:
    image, adoption = adopted(MetadataImage(), KEPT._replace(settings_unknown=True))
    assert adoption.settings_unknown == ["events"]
    assert image.recovered[ID] == RecoveredTopic((0,), True)

    def altered(key: str, operation: ConfigOperation, value: str | None) -> MetadataImage:
        change = AlterResource(ResourceType.TOPIC, "events", (AlterConfig(key, operation, value),))
        decision = at_once(incremental_alter_configs(image, [change], AnyConfig()))
        return image_of(*(frame.record for frame in decision.frames), base=image)

    assert altered("segment.bytes", ConfigOperation.SET, "1").recovered[ID].settings_unknown
    assert not altered("retention.ms", ConfigOperation.SET, "-1").recovered[ID].settings_unknown
    assert not altered("retention.ms", ConfigOperation.DELETE, None).recovered[ID].settings_unknown
    assert altered("retention.bytes", ConfigOperation.SET, "9").recovered[ID].unchecked_partitions == (0,)


def test_settings_that_were_not_known_at_the_first_recovery_are_not_at_the_second() -> None:
    first, _ = adopted(MetadataImage(), KEPT._replace(settings_unknown=True))
    found = recovered_topics(first, None, RecoveredArchive({}, (), (), -1))
    assert [one.settings_unknown for one in found.topics] == [True]


@pytest.mark.parametrize(
    ("of_leader", "of_this", "override", "is_unknown"),
    [
        ("-1", None, None, True),
        ("-1", "1000", None, True),
        ("1000", "-1", None, True),
        ("-1", "-1", None, False),
        (None, None, None, False),
        ("-1", None, "1000", False),
    ],
)
def test_a_topic_waits_where_another_broker_led_it_under_settings_of_its_own(
    of_leader: str | None, of_this: str | None, override: str | None, is_unknown: bool
) -> None:
    records: list[object] = [
        TopicRecord(name="events", topic_id=ID),
        PartitionRecord(
            partition_id=0, topic_id=ID, replicas=(2,), isr=(2,), leader=2,
            leader_epoch=3, partition_epoch=0, directories=(UUID(int=50),),
        ),
    ]  # fmt: skip
    for broker, value in (("2", of_leader), ("1", of_this)):
        if value is not None:
            records.append(setting(ResourceType.BROKER, broker, "log.retention.ms", value))
    copy = MetadataDelta(MetadataImage()).replay_all(records).build(10, 1, 0)  # type: ignore[arg-type]
    configs = {"remote.storage.enable": "true"} | ({} if override is None else {"retention.ms": override})
    found = topic(p0=AdoptedPartition(entry(4), 9))._replace(configs=configs)
    image, adoption = adopted(MetadataImage(), found, lost=copy)
    assert (adoption.settings_unknown == ["events"]) == is_unknown
    assert image.recovered[ID].settings_unknown == is_unknown


def test_a_restored_disk_without_any_copy_keeps_all_of_what_the_bucket_went_on_with() -> None:
    image, _ = adopted(known(entry(2, 40)), KEPT)
    assert image.recovered[ID].settings_unknown
    image, _ = adopted(known(entry(4)), KEPT)
    assert not image.recovered, "the bucket has no news of it"


def test_no_topic_expires_if_its_settings_may_be_outdated() -> None:
    other = UUID(int=8)
    own = image_of(TopicRecord(name="local", topic_id=other), base=known(entry(4)))
    for is_copy_newer in (True, False):
        found = BucketContent([KEPT], known(entry(4)), is_copy_newer, 1, 0, "a newer copy is lost")
        frames = adopt(own, found, node_id=1, life_id=LIFE).frames
        image = image_of(*(frame.record for frame in frames), base=own)
        assert image.recovered[ID].settings_unknown
        assert image.recovered[other].settings_unknown, "also of one that the bucket says nothing of"


def test_a_restored_disk_keeps_all_of_what_the_bucket_went_on_with_though_there_is_an_older_copy() -> None:
    """The copy is older than the disk, as the newer ones are lost: what was altered since is not known."""
    copy = known(entry(1, 20))
    image, _ = adopted(known(entry(2, 40)), KEPT, lost=copy, is_copy_newer=False)
    assert image.recovered[ID].settings_unknown
    image, _ = adopted(known(entry(4)), KEPT, lost=copy, is_copy_newer=False)
    assert not image.recovered, "the bucket has no news of it"


def test_a_recovery_keeps_the_eligible_leaders_of_the_metadata() -> None:
    """A disk from a backup ends uncleanly: the ISR is empty then, and the last leader alone is known."""
    state = PartitionRecord(
        partition_id=0, topic_id=ID, replicas=(1, 2), isr=(), leader=-1, leader_epoch=5,
        partition_epoch=3, directories=(UUID(int=50), UUID(int=51)), eligible_leader_replicas=(2,),
        last_known_elr=(1,), adding_replicas=(2,), leader_recovery_state=1,
    )  # fmt: skip
    own = image_of(state, base=known(entry(4)))
    image, _ = adopted(own, KEPT, lost=own, is_copy_newer=False)
    before, after = (one.topics_by_id[ID].partitions[0] for one in (own, image))
    assert after == before._replace(leader_epoch=9 + EPOCH_MARGIN, partition_epoch=4)


def test_a_topic_made_again_after_the_newest_copy_takes_its_name_on_a_restored_disk() -> None:
    again = UUID(int=8)
    for is_copy_newer in (True, False):
        image, adoption = adopted(
            known(entry(4)), topic(topic_id=again), lost=known(entry(4)), is_copy_newer=is_copy_newer
        )
        assert image.topics_by_name["events"].id == again
        assert (adoption.removed, adoption.refused) == (["events"], [])


def test_a_topic_known_only_to_topics_json_is_restored() -> None:
    again = topic(topic_id=UUID(int=8))
    for doubt, expected in ((None, ID), ("topics.json was made of later metadata", again.topic_id)):
        own = known(entry(4))
        frames = adopt(own, BucketContent([again], None, False, 1, 0, doubt), node_id=1, life_id=LIFE).frames
        image = image_of(*(frame.record for frame in frames), base=own)
        assert image.topics_by_name["events"].id == expected


def rights(user: str, *, has_credentials: bool = True) -> MetadataImage:
    """An image with an entry, a quota and credentials of a user."""
    records: list[MetadataRecord] = [
        AccessControlEntryRecord(
            id=UUID(int=len(user)),
            resource_type=2,
            resource_name="events",
            pattern_type=3,
            principal=f"User:{user}",
            host="*",
            operation=3,
            permission_type=2,
        ),
        ClientQuotaRecord(
            entity=(QuotaEntityData(entity_type="user", entity_name=user),),
            key="request_percentage",
            value=1.0,
        ),
    ]
    if has_credentials:
        records.append(
            UserScramCredentialRecord(
                name=user, mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
            )
        )
        records.append(
            DelegationTokenRecord(
                owner=f"User:{user}",
                requester=f"User:{user}",
                renewers=(),
                issue_timestamp=1,
                max_timestamp=3,
                expiration_timestamp=2,
                token_id=f"token of {user}",
            )
        )
    return MetadataDelta(MetadataImage()).replay_all(records).build(3, 1, 0)


def test_access_is_as_closed_as_the_newer_copy_has_it() -> None:
    for own in (MetadataImage(), rights("own")):
        image, _ = adopted(own, lost=rights("theirs", has_credentials=False))
        assert [one.principal for one in image.acls.entries.values()] == ["User:theirs"]
        assert [one.user for one in image.client_quotas] == ["theirs"]
        assert list(image.scram) == list(own.scram), "the copy leaves credentials out: those here stay"
        assert not image.tokens, "those here may have been revoked"


def test_passwords_of_brokers_settings_stay_where_the_copy_leaves_them_out() -> None:
    def with_settings(**settings: str) -> MetadataImage:
        records = [
            ConfigRecord(resource_type=4, resource_name="1", name=name.replace("_", "."), value=value)
            for name, value in settings.items()
        ]
        return MetadataDelta(MetadataImage()).replay_all(records).build(3, 1, 0)

    own = with_settings(
        listener_name_a_ssl_key_password="ours", log_cleaner_threads="2", ssl_key_password="p"
    )
    lost = with_settings(log_cleaner_threads="3", ssl_key_password="theirs")
    image, _ = adopted(own, lost=lost)
    assert dict(image.config(4, "1")) == {
        "listener.name.a.ssl.key.password": "ours",
        "log.cleaner.threads": "3",
        "ssl.key.password": "theirs",
    }


def test_credentials_of_a_newer_copy_replace_ours() -> None:
    image, _ = adopted(rights("own"), lost=rights("theirs"))
    assert list(image.scram) == ["theirs"]
    assert list(image.tokens) == ["token of theirs"]


def test_access_of_an_older_copy_is_not_taken() -> None:
    image, _ = adopted(rights("own"), lost=rights("theirs"), is_copy_newer=False)
    assert [one.principal for one in image.acls.entries.values()] == ["User:own"]
    assert [one.user for one in image.client_quotas] == ["own"]
    assert list(image.scram) == ["own"]
    assert list(image.tokens) == ["token of own"]


def with_tail(image: MetadataImage, tail: RestoredTail) -> MetadataImage:
    delta = MetadataDelta(image)
    return delta.replay_all([restored_tail_record((ID, 0), tail)]).build(image.offset + 1, 1, 0)


def test_a_tail_that_was_not_loaded_is_still_to_load_after_a_second_disaster() -> None:
    tail = RestoredTail(100, 150, 1150, "cut/9", "")
    lost = with_tail(known(entry(4)), tail)
    image, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)), lost=lost)
    assert dict(image.restored_tails) == {(ID, 0): tail}
    unarchived, _ = adopted(MetadataImage(), topic(), lost=with_tail(known(None), tail))
    assert dict(unarchived.restored_tails) == {(ID, 0): tail}
    grown, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(5, 1200), 9)), lost=lost)
    assert not grown.restored_tails, "the archive goes on behind it: it was loaded"


def test_an_older_disk_learns_from_the_bucket_that_its_tail_was_loaded() -> None:
    tail = RestoredTail(100, 150, 1150, "cut/9", "")
    own = with_tail(known(entry(4)), tail)
    found = topic(p0=AdoptedPartition(entry(4), 9))
    assert not adopted(own, found, lost=known(entry(4)))[0].restored_tails
    assert dict(adopted(own, found)[0].restored_tails) == {(ID, 0): tail}, "nothing newer is known"


def test_orders_to_erase_begin_anew_on_a_disk_that_may_be_of_before_them() -> None:
    """Done or not, with notes or not: the log may be the backup's. Rewrites end with the leader epoch."""
    mine = Erasure(UUID(int=1), "erase/1", 5, 6, 3, (ID, UUID(int=99)), 40, done_ms=50)
    gone = mine._replace(id=UUID(int=2), topics=(ID,))
    news = mine._replace(id=UUID(int=3), topics=(UUID(int=8),), done_ms=-1)
    strange = mine._replace(id=UUID(int=4), topics=(UUID(int=99),))
    intent = RewriteIntent(UUID(int=5), 0, 9, RewriteKind.ERASE, 5, 1)
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=CATALOG_VERSION, feature_level=2),
        erasure_record(mine),
        *erased_records(mine.id, [((ID, 0), (1, IN_BUCKET))]),
        erasure_record(gone),
        rewrite_record((ID, 0), intent),
    ]
    own = MetadataDelta(known(entry(4))).replay_all(records).build(20, 1, 0)
    image, _ = adopted(own, topic(), topic("other", UUID(int=8)), erasures=(mine, news, strange))
    assert dict(image.erasures) == {
        mine.id: mine._replace(topics=(ID,), done_ms=-1, is_restored=True),
        news.id: news._replace(is_restored=True),
    }
    assert (dict(image.erased), dict(image.rewrites)) == ({}, {})
    assert image.features[CATALOG_VERSION] == 3, "other nodes may join, and have to read the orders"
    assert not adopted(own, topic())[0].erasures
    assert CATALOG_VERSION not in adopted(known(None), topic(), erasures=(mine,))[0].features
