"""Records of the metadata log as they go into the bucket: without what only its cluster may know."""

from __future__ import annotations

from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.types import BrokerId

from service.base.steps import at_once
from service.metadata.batches import decode_batches, encode_batch, encode_control_batch
from service.metadata.controller.requests import ResourceType
from service.metadata.frames import newest
from service.metadata.records import (
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from service.metadata.tail_records import to_be_copied


def config(name: str, resource: ResourceType = ResourceType.BROKER) -> ConfigRecord:
    return ConfigRecord(resource_type=int(resource), resource_name="1", name=name, value="a secret")


USER = UserScramCredentialRecord(
    name="alice", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
)
TOKEN = DelegationTokenRecord(
    owner="User:carol", requester="User:carol", renewers=(), issue_timestamp=1, max_timestamp=2,
    expiration_timestamp=2, token_id="the token",
)  # fmt: skip
FEATURE = FeatureLevelRecord(name="group.version", feature_level=1)


def batch(*records: MetadataRecord, at: int = 10) -> bytes:
    return bytes(encode_batch(map(newest, records), base_offset=at, epoch=4, timestamp_ms=77))


def test_batches_without_secrets_are_copied_to_the_byte() -> None:
    data = batch(FEATURE, config("num.io.threads")) + batch(
        config("ssl.keystore.password", ResourceType.TOPIC), at=12
    )
    piece = at_once(to_be_copied(data, has_credentials=False))
    assert (piece.data, piece.records, piece.epoch, piece.max_timestamp, piece.has_news) == (
        data,
        3,
        4,
        77,
        True,
    )


def test_credentials_tokens_and_passwords_become_records_of_nothing_at_their_offsets() -> None:
    data = batch(
        FEATURE,
        USER,
        TOKEN,
        config("ssl.keystore.password"),
        RemoveUserScramCredentialRecord(name="alice", mechanism=1),
    )
    piece = at_once(to_be_copied(data, has_credentials=False))
    [copied] = decode_batches(piece.data)
    assert [type(frame.record) for frame in copied.frames] == [FeatureLevelRecord] + [NoOpRecord] * 4
    assert (copied.base_offset, copied.last_offset, copied.epoch, copied.timestamp_ms) == (10, 14, 4, 77)
    for secret in (b"salt", b"stored", b"server", b"alice", b"carol", b"the token", b"a secret"):
        assert secret not in piece.data
    assert piece.records == 5


def test_secrets_are_copied_where_the_operator_wants_them() -> None:
    data = batch(USER, TOKEN)
    assert at_once(to_be_copied(data, has_credentials=True)).data == data


def test_records_of_nothing_and_of_the_quorum_are_no_news() -> None:
    leader = LeaderChangeMessage(version=0, leader_id=BrokerId(1), voters=(), granting_voters=())
    control = bytes(encode_control_batch(leader, base_offset=20, epoch=5, timestamp_ms=80))
    piece = at_once(to_be_copied(batch(NoOpRecord(), NoOpRecord(), at=18) + control, has_credentials=False))
    assert (piece.has_news, piece.records, piece.epoch) == (False, 3, 5)
