"""Decisions on ACLs, SCRAM credentials and client quotas; what Kafka answers is in the golden tests."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import pbkdf2_hmac, sha256
from hmac import digest
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps, at_once
from service.metadata.client_quotas import QuotaEntity
from service.metadata.controller.acl_control import AclDeletion, AclResult, create_acls, delete_acls
from service.metadata.controller.acl_filters import AclFilter
from service.metadata.controller.quota_control import QuotaAlteration, alter_client_quotas
from service.metadata.controller.scram_control import (
    DeleteCredential,
    UpsertCredential,
    alter_scram_credentials,
)
from service.metadata.delta import MetadataDelta
from service.metadata.frames import encode_frame
from service.metadata.image import BrokerImage, ControllerImage, FeatureRange, MetadataImage
from service.metadata.records import RemoveAccessControlEntryRecord
from service.security.acls import AclEntry
from tests.unit.metadata.controllers import running

ENTRY = AclEntry(2, "orders", 3, "User:alice", "*", 3, 3)
ANY = AclFilter(1, None, 1, None, None, 1, 1)
NEW = UpsertCredential("alice", 1, 4096, b"salt", b"salted password")
RATE = QuotaAlteration((("user", "alice"),), (("producer_byte_rate", 1024.0),))


def creation(image: MetadataImage, *entries: AclEntry, **options: Any) -> Any:
    return at_once(create_acls(image, entries, new_uuid=options.get("new_uuid", uuid4)))


def after(image: MetadataImage, decision: Any) -> MetadataImage:
    delta = MetadataDelta(image).replay_all(one.record for one in decision.frames)
    return delta.build(image.offset + len(decision.frames), 1, 0)


def with_entries(count: int) -> MetadataImage:
    entries = [ENTRY._replace(name=f"t{number}") for number in range(count)]
    return after(MetadataImage(), creation(MetadataImage(), *entries))


def steps_of(steps: Steps[Any]) -> int:
    return sum(1 for _ in steps)


# -- ACLs


def test_names_of_more_bytes_than_kafkas_strings_have_are_refused() -> None:
    for entry in (
        ENTRY._replace(name="\u00e9" * 16_384),
        ENTRY._replace(name="n" * 32_768),
        ENTRY._replace(principal="User:" + "p" * 32_763),
        ENTRY._replace(host="h" * 32_768),
    ):
        assert [one.error for one in creation(MetadataImage(), entry).response] == [ErrorCode.invalid_request]
    assert creation(MetadataImage(), ENTRY._replace(name="n" * 32_767)).response == [AclResult()]


def test_a_new_entry_never_has_the_id_of_another() -> None:
    ids = iter([UUID(int=1), UUID(int=1), UUID(int=2), UUID(int=1), UUID(int=2), UUID(int=3)])
    image = after(MetadataImage(), creation(MetadataImage(), ENTRY, new_uuid=ids.__next__))
    others = [ENTRY._replace(name="a"), ENTRY._replace(name="b")]
    image = after(image, creation(image, *others, new_uuid=ids.__next__))
    assert {key.int: entry.name for key, entry in image.acls.entries.items()} == {1: "orders", 2: "a", 3: "b"}


def test_more_entries_than_an_operation_may_write_are_refused_unread() -> None:
    with pytest.raises(RequestError) as caught:
        creation(MetadataImage(), *[ENTRY] * 10_001)
    assert caught.value.code is ErrorCode.policy_violation
    assert len(creation(MetadataImage(), *[ENTRY] * 10_000).frames) == 1


def test_filters_together_delete_ten_thousand_entries_or_none() -> None:
    image = with_entries(10_000)
    decision = at_once(delete_acls(image, [ANY]))
    assert len(decision.frames) == len(decision.response[0].deleted) == 10_000
    assert {type(one.record) for one in decision.frames} == {RemoveAccessControlEntryRecord}
    assert dict(after(image, decision).acls.entries) == {}
    for filters in ([ANY, ANY], [ANY, ANY._replace(name="t7")]):
        with pytest.raises(RequestError) as caught:
            at_once(delete_acls(image, filters))
        assert caught.value.code is ErrorCode.invalid_request
        assert "10000 acls" in str(caught.value)


def test_an_entry_that_two_filters_match_is_removed_once() -> None:
    image = with_entries(3)
    decision = at_once(delete_acls(image, [ANY._replace(name="t1"), ANY._replace(name="t1", pattern=3)]))
    assert len(decision.frames) == 1
    assert [one.deleted for one in decision.response] == [(ENTRY._replace(name="t1"),)] * 2


def test_a_refused_filter_deletes_nothing_and_others_go_on() -> None:
    filters = [
        ANY._replace(pattern=0),
        ANY._replace(name="t2"),
        ANY._replace(permission=4),
        ANY._replace(name="t"),
    ]
    decision = at_once(delete_acls(with_entries(3), filters))
    assert [(one.error.name, one.message, len(one.deleted)) for one in decision.response] == [
        ("invalid_request", "Unknown patternFilter.", 0),
        ("none", None, 1),
        ("invalid_request", "Unknown entryFilter.", 0),
        ("none", None, 0),
    ]
    assert len(decision.frames) == 1


def test_more_filters_than_an_operation_may_write_records_are_refused_unread() -> None:
    with pytest.raises(RequestError) as caught:
        at_once(delete_acls(MetadataImage(), [ANY] * 10_001))
    assert caught.value.code is ErrorCode.policy_violation
    assert at_once(delete_acls(MetadataImage(), [ANY] * 10_000)).response == [AclDeletion()] * 10_000


def test_acls_are_decided_in_steps() -> None:
    entries = [ENTRY._replace(name=f"t{number}") for number in range(3000)]
    assert steps_of(create_acls(MetadataImage(), entries, new_uuid=uuid4)) >= 3000
    image = after(MetadataImage(), creation(MetadataImage(), *entries))
    assert steps_of(delete_acls(image, [ANY])) >= 3000
    assert steps_of(delete_acls(image, [ANY._replace(name="x")] * 3000)) >= 6000


# -- credentials


def test_the_keys_that_are_kept_prove_the_exchange_of_rfc_7677() -> None:
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    exchange = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
    proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    decision = at_once(
        alter_scram_credentials(MetadataImage(), [], [UpsertCredential("user", 1, 4096, salt, salted)])
    )
    kept: Any = decision.frames[0].record
    signature = digest(kept.stored_key, exchange.encode(), "sha256")
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    assert sha256(client_key).digest() == kept.stored_key
    assert b64encode(digest(kept.server_key, exchange.encode(), "sha256")) == (
        b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    assert (kept.name, kept.mechanism, kept.salt, kept.iterations) == ("user", 1, salt, 4096)
    assert salted not in encode_frame(decision.frames[0])


def test_no_password_is_shown() -> None:
    assert repr(NEW) == "UpsertCredential('alice', 1, 4096)"


@pytest.mark.parametrize(
    "new",
    [
        NEW._replace(salted_password=b""),
        NEW._replace(salted_password=b"p" * 1025),
        NEW._replace(salt=b"s" * 1025),
        NEW._replace(user="u" * 32_768),
        NEW._replace(user="\u00e9" * 16_384),
    ],
)
def test_a_credential_that_no_client_makes_is_unacceptable(new: UpsertCredential) -> None:
    decision = at_once(alter_scram_credentials(MetadataImage(), [], [new]))
    assert [one.error for one in decision.response] == [ErrorCode.unacceptable_credential]
    assert decision.frames == ()


def test_credentials_are_decided_in_steps() -> None:
    many = [NEW._replace(user=f"u{number}") for number in range(1000)]
    assert steps_of(alter_scram_credentials(MetadataImage(), [], many)) >= 1000
    deletions = [DeleteCredential(one.user, 1) for one in many]
    assert steps_of(alter_scram_credentials(MetadataImage(), deletions, [])) >= 1000


# -- quotas


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 0.0, -1.0])
def test_a_quota_is_a_positive_number(value: float) -> None:
    for key in ("producer_byte_rate", "request_percentage"):
        decision = at_once(alter_client_quotas(MetadataImage(), [RATE._replace(changes=((key, value),))]))
        assert [one.error for one in decision.response] == [ErrorCode.invalid_request]
        assert decision.frames == ()


@pytest.mark.parametrize("ip", ["localhost", "example.org", "1.2.3", "256.1.1.1", "*"])
def test_an_address_is_never_looked_up(ip: str) -> None:
    alteration = QuotaAlteration((("ip", ip),), (("connection_creation_rate", 1.0),))
    decision = at_once(alter_client_quotas(MetadataImage(), [alteration]))
    assert [one.message for one in decision.response] == [
        f"{ip} is not a valid IP address; host names are not looked up"
    ]


def test_a_longer_name_than_kafkas_strings_is_refused() -> None:
    decision = at_once(alter_client_quotas(MetadataImage(), [RATE._replace(parts=(("user", "u" * 32_768),))]))
    assert [one.error for one in decision.response] == [ErrorCode.invalid_request]


def test_an_entity_is_one_whatever_the_order_of_its_parts() -> None:
    both = (("user", "alice"), ("client-id", None))
    image = after(MetadataImage(), at_once(alter_client_quotas(MetadataImage(), [RATE._replace(parts=both)])))
    again = at_once(alter_client_quotas(image, [RATE._replace(parts=both[::-1])]))
    assert again.frames == ()
    assert dict(image.client_quotas) == {QuotaEntity("alice", None): {"producer_byte_rate": 1024.0}}


def test_quotas_are_decided_in_steps() -> None:
    many = [RATE._replace(parts=(("user", f"u{number}"),)) for number in range(1000)]
    assert steps_of(alter_client_quotas(MetadataImage(), many)) >= 1000


# -- software that cannot read the records


OLD = (FeatureRange("firn.catalog.version", 0, 1), FeatureRange("metadata.version", 30, 30))
KAFKAS = (FeatureRange("metadata.version", 7, 30),)
READS = (*OLD, FeatureRange("firn.records.version", 0, 1))


def broker(node_id: int, features: tuple[FeatureRange, ...]) -> BrokerImage:
    return BrokerImage(node_id, 1, UUID(int=node_id), (), features, None, True, False, ())


def decisions(image: MetadataImage) -> list[Any]:
    return [
        lambda: creation(image, ENTRY),
        lambda: at_once(delete_acls(image, [ANY])),
        lambda: at_once(alter_scram_credentials(image, [], [NEW])),
        lambda: at_once(alter_scram_credentials(image, [DeleteCredential("bob", 2)], [])),
        lambda: at_once(alter_client_quotas(image, [RATE])),
    ]


def full_image() -> MetadataImage:
    image = after(MetadataImage(), creation(MetadataImage(), ENTRY._replace(name="other")))
    bob = NEW._replace(user="bob", mechanism=2)
    return after(image, at_once(alter_scram_credentials(image, [], [bob])))


@pytest.mark.parametrize("number", range(5))
def test_nothing_is_written_while_a_firn_node_cannot_read_it(number: int) -> None:
    image = full_image()
    brokers = {1: broker(1, READS), 2: broker(2, KAFKAS), 7: broker(7, OLD)}
    with pytest.raises(RequestError) as caught:
        decisions(replace(image, brokers=brokers))[number]()
    assert caught.value.code is ErrorCode.unsupported_version
    assert "Broker 7 " in str(caught.value)
    controllers = {3: ControllerImage(3, UUID(int=3), (), OLD)}
    with pytest.raises(RequestError, match="Controller 3 "):
        decisions(replace(image, controllers=controllers))[number]()
    assert decisions(replace(image, brokers={1: broker(1, READS), 2: broker(2, KAFKAS)}))[number]().frames


def test_a_request_that_writes_nothing_needs_no_software() -> None:
    image = replace(full_image(), brokers={7: broker(7, OLD)})
    assert creation(image, ENTRY._replace(name="other")).response == [AclResult()]
    assert at_once(delete_acls(image, [ANY._replace(name="nothing")])).response == [AclDeletion()]
    checked = at_once(alter_client_quotas(image, [RATE], validate_only=True))
    assert [one.error for one in checked.response] == [ErrorCode.none]


# -- the controller


def test_the_controller_keeps_what_it_decided(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            assert await controller.access.create_acls([ENTRY, ENTRY]) == [AclResult(), AclResult()]
            assert len(controller.image.acls.entries) == 1
            await controller.access.alter_scram_credentials([], [NEW])
            await controller.access.alter_client_quotas([RATE])
            (deleted,) = await controller.access.delete_acls([ANY])
            assert deleted.deleted == (ENTRY,)
        async with running(tmp_path) as controller:
            assert dict(controller.image.acls.entries) == {}
            assert list(controller.image.scram) == ["alice"]
            assert list(controller.image.client_quotas) == [QuotaEntity("alice")]

    asyncio.run(scenario())
