"""Records of ACLs, SCRAM credentials and client quotas: their replay, and what contradicts the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.steps import at_once
from service.metadata.client_quotas import QuotaEntity
from service.metadata.delta import MetadataDelta
from service.metadata.frames import decode_frame, encode_frame, newest
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    MetadataRecord,
    QuotaEntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from service.security.acls import AclEntry
from service.security.principal import Principal
from service.security.scram_credential import ScramCredential
from service.security.tokens import DelegationToken

ENTRY = AccessControlEntryRecord(
    id=UUID(int=1),
    resource_type=2,
    resource_name="orders",
    pattern_type=3,
    principal="User:alice",
    host="*",
    operation=3,
    permission_type=3,
)
ALICE = UserScramCredentialRecord(
    name="alice", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
)
QUOTA = ClientQuotaRecord(
    entity=(
        QuotaEntityData(entity_type="user", entity_name="alice"),
        QuotaEntityData(entity_type="client-id", entity_name=None),
    ),
    key="producer_byte_rate",
    value=1024.0,
)
TOKEN = DelegationTokenRecord(
    owner="User:alice",
    requester="User:broker",
    renewers=("User:bob", "User:CN=a,OU=b"),
    issue_timestamp=1_000,
    max_timestamp=9_000,
    expiration_timestamp=5_000,
    token_id="id-1",
)
PARTS = ("acls", "scram", "tokens", "client_quotas")


def after(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    return MetadataDelta(image).replay_all(records).build(image.offset + len(records), 1, 0)


FULL = after(MetadataImage(), ENTRY, ALICE, TOKEN, QUOTA)


def test_records_are_kept_by_what_they_are_about() -> None:
    assert dict(FULL.acls.entries) == {UUID(int=1): AclEntry(2, "orders", 3, "User:alice", "*", 3, 3)}
    assert dict(FULL.scram) == {"alice": {1: ScramCredential(b"salt", b"stored", b"server", 4096)}}
    assert dict(FULL.client_quotas) == {QuotaEntity("alice", None): {"producer_byte_rate": 1024.0}}
    renewers = (Principal("User", "bob"), Principal("User", "CN=a,OU=b"))
    alice, broker = Principal("User", "alice"), Principal("User", "broker")
    assert dict(FULL.tokens) == {
        "id-1": DelegationToken("id-1", alice, broker, renewers, 1_000, 9_000, 5_000)
    }


@pytest.mark.parametrize("record", [ENTRY, ALICE, TOKEN, RemoveDelegationTokenRecord(token_id="id-1"), QUOTA])
def test_a_record_survives_its_bytes(record: MetadataRecord) -> None:
    assert decode_frame(encode_frame(newest(record))).record == record


def test_removals_leave_nothing() -> None:
    image = after(
        FULL,
        RemoveAccessControlEntryRecord(id=UUID(int=1)),
        RemoveUserScramCredentialRecord(name="alice", mechanism=1),
        RemoveDelegationTokenRecord(token_id="id-1"),
        replace(QUOTA, remove=True),
    )
    empty = MetadataImage()
    assert [getattr(image, part) for part in PARTS] == [getattr(empty, part) for part in PARTS]


def test_a_user_has_a_credential_for_each_mechanism() -> None:
    image = after(
        FULL, replace(ALICE, mechanism=2), RemoveUserScramCredentialRecord(name="alice", mechanism=1)
    )
    assert dict(image.scram) == {"alice": {2: ScramCredential(b"salt", b"stored", b"server", 4096)}}
    assert FULL.scram["alice"].keys() == {1}, "the image of before is as it was"


def test_a_credential_a_token_and_a_quota_are_replaced() -> None:
    renewed = replace(TOKEN, expiration_timestamp=6_000)
    image = after(FULL, replace(ALICE, iterations=8192), renewed, replace(QUOTA, value=7.0))
    assert image.tokens["id-1"].expiry_ms == 6_000
    assert image.scram["alice"][1].iterations == 8192
    assert image.client_quotas[QuotaEntity("alice", None)] == {"producer_byte_rate": 7.0}


@pytest.mark.parametrize(
    ("part", "record"),
    [
        ("acls", replace(ENTRY, id=UUID(int=2), operation=4)),
        ("scram", replace(ALICE, name="bob")),
        ("tokens", replace(TOKEN, token_id="id-2")),
        ("client_quotas", replace(QUOTA, value=2.0)),
    ],
)
def test_a_part_is_another_object_exactly_after_a_change_to_it(part: str, record: MetadataRecord) -> None:
    image = after(FULL, record)
    assert [one for one in PARTS if getattr(image, one) is not getattr(FULL, one)] == [part]


@pytest.mark.parametrize("record", [ALICE, TOKEN, RemoveDelegationTokenRecord(token_id="id-2"), QUOTA])
def test_a_part_is_the_same_object_after_a_record_that_changes_nothing(record: MetadataRecord) -> None:
    image = after(FULL, record)
    assert [one for one in PARTS if getattr(image, one) is not getattr(FULL, one)] == []


def test_an_entry_that_is_removed_and_added_again_under_its_id_changes_nothing() -> None:
    image = after(FULL, RemoveAccessControlEntryRecord(id=UUID(int=1)), ENTRY)
    assert image.acls is FULL.acls


def test_an_entry_may_return_under_another_id() -> None:
    image = after(FULL, RemoveAccessControlEntryRecord(id=UUID(int=1)), replace(ENTRY, id=UUID(int=2)))
    assert list(image.acls.entries) == [UUID(int=2)]


def test_an_entry_that_is_added_and_removed_in_one_change_was_never_there() -> None:
    image = after(
        FULL, replace(ENTRY, id=UUID(int=2), host="h"), RemoveAccessControlEntryRecord(id=UUID(int=2))
    )
    assert image.acls is FULL.acls


def test_an_operation_of_a_later_kafka_is_kept() -> None:
    image = after(MetadataImage(), replace(ENTRY, operation=99))
    assert image.acls.entries[UUID(int=1)].operation == 99


CONTRADICTIONS: dict[str, MetadataRecord] = {
    "an entry twice": ENTRY,
    "an equal entry under another id": replace(ENTRY, id=UUID(int=2)),
    "an entry without a resource type": replace(ENTRY, id=UUID(int=2), resource_type=0),
    "an entry of any resource type": replace(ENTRY, id=UUID(int=2), resource_type=1),
    "an entry of an unknown resource type": replace(ENTRY, id=UUID(int=2), resource_type=8),
    "an entry of a negative resource type": replace(ENTRY, id=UUID(int=2), resource_type=-1),
    "an entry of any pattern": replace(ENTRY, id=UUID(int=2), pattern_type=1),
    "an entry of what matches": replace(ENTRY, id=UUID(int=2), pattern_type=2),
    "an entry of an unknown pattern": replace(ENTRY, id=UUID(int=2), pattern_type=5),
    "an entry of any operation": replace(ENTRY, id=UUID(int=2), operation=1),
    "an entry of a negative operation": replace(ENTRY, id=UUID(int=2), operation=-1),
    "an entry that neither allows nor denies": replace(ENTRY, id=UUID(int=2), permission_type=1),
    "an entry of an unknown permission": replace(ENTRY, id=UUID(int=2), permission_type=4),
    "an entry without a name": replace(ENTRY, id=UUID(int=2), resource_name=""),
    "an entry of a principal without a type": replace(ENTRY, id=UUID(int=2), principal="alice"),
    "the removal of no entry": RemoveAccessControlEntryRecord(id=UUID(int=2)),
    "an unknown mechanism": replace(ALICE, mechanism=3),
    "no mechanism": replace(ALICE, mechanism=0),
    "a credential of nobody": replace(ALICE, name=""),
    "a credential without iterations": replace(ALICE, iterations=0),
    "the removal of another mechanism": RemoveUserScramCredentialRecord(name="alice", mechanism=2),
    "the removal of an unknown user": RemoveUserScramCredentialRecord(name="bob", mechanism=1),
    "a token without an id": replace(TOKEN, token_id=""),
    "a token of an owner without a type": replace(TOKEN, owner="alice"),
    "a token of a requester without a type": replace(TOKEN, requester=""),
    "a token of a renewer without a type": replace(TOKEN, renewers=("User:bob", "carol")),
    "a quota of nobody": replace(QUOTA, entity=()),
    "a quota of an unknown type": replace(
        QUOTA, entity=(QuotaEntityData(entity_type="group", entity_name="g"),)
    ),
    "a quota of one type twice": replace(QUOTA, entity=(QUOTA.entity[0], QUOTA.entity[0])),
    "a quota of an empty name": replace(QUOTA, entity=(QuotaEntityData(entity_type="user", entity_name=""),)),
    "a quota of a user's address": replace(
        QUOTA, entity=(QUOTA.entity[0], QuotaEntityData(entity_type="ip", entity_name=None))
    ),
    "the removal of another key": replace(QUOTA, key="consumer_byte_rate", remove=True),
    "the removal of another entity's quota": replace(QUOTA, entity=QUOTA.entity[:1], remove=True),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_record_that_contradicts_the_image_is_corruption(what: str) -> None:
    with pytest.raises(CorruptionError):
        after(FULL, CONTRADICTIONS[what])


@pytest.mark.parametrize(
    "records",
    [
        [RemoveAccessControlEntryRecord(id=UUID(int=1))] * 2,
        [RemoveUserScramCredentialRecord(name="alice", mechanism=1)] * 2,
        [replace(QUOTA, remove=True)] * 2,
        [replace(ENTRY, id=UUID(int=2), host="h")] * 2,
    ],
)
def test_a_change_cannot_be_made_twice(records: list[MetadataRecord]) -> None:
    after(FULL, records[0])
    with pytest.raises(CorruptionError):
        after(FULL, *records)


def test_a_token_may_be_removed_twice_as_kafkas_controllers_do() -> None:
    removal = RemoveDelegationTokenRecord(token_id="id-1")
    assert not after(after(FULL, removal), removal).tokens
    assert not after(FULL, removal, removal).tokens
    assert after(FULL, removal, TOKEN).tokens is FULL.tokens


def test_no_key_is_shown() -> None:
    for shown in map(repr, (ALICE, newest(ALICE), FULL.scram["alice"], FULL.scram["alice"][1])):
        assert "alice" in shown or "4096" in shown
        for secret in ("salt", "stored", "server"):
            assert f"b'{secret}'" not in shown


def test_a_snapshot_takes_away_what_it_lacks() -> None:
    before = after(
        FULL,
        replace(ENTRY, id=UUID(int=2), host="h"),
        replace(ALICE, mechanism=2),
        replace(TOKEN, token_id="id-2"),
        replace(QUOTA, key="consumer_byte_rate"),
    )
    other = after(
        MetadataImage(),
        replace(ENTRY, id=UUID(int=2), host="i"),
        replace(ALICE, name="carol"),
        replace(ALICE, salt=b"other"),
        replace(TOKEN, token_id="id-2", max_timestamp=8_000),
        replace(TOKEN, token_id="id-3"),
        replace(QUOTA, entity=QUOTA.entity[:1]),
    )
    image, delta = at_once(apply_snapshot(before, other))
    for part in PARTS:
        assert getattr(image, part) == getattr(other, part)
    assert set(delta.users) == {"alice", "carol"}
    assert set(delta.quota_entities) == {QuotaEntity("alice", None), QuotaEntity("alice")}


def test_the_acls_of_a_fetched_snapshot_are_taken_as_they_are() -> None:
    other = after(MetadataImage(), replace(ENTRY, host="h"))
    assert at_once(apply_snapshot(FULL, other))[0].acls is other.acls
    same = after(MetadataImage(), ENTRY)
    assert same.acls is not FULL.acls
    assert at_once(apply_snapshot(FULL, same))[0].acls is FULL.acls


def steps_of(image: MetadataImage, records: list[Any]) -> tuple[int, int]:
    delta = MetadataDelta(image)
    replayed = sum(1 for _ in delta.replay_in_steps(records))
    return replayed, sum(1 for _ in delta.build_in_steps(1, 1, 0))


def test_many_entries_are_replayed_and_built_in_steps() -> None:
    records = [replace(ENTRY, id=UUID(int=number), host=str(number)) for number in range(3200)]
    replayed, built = steps_of(MetadataImage(), records)
    assert replayed == 3200
    assert built >= 100
    empty = steps_of(MetadataImage(), [])
    assert empty[0] == 0
    assert empty[1] < 20
