"""Dumps of the metadata log show no credential, whatever version its record has."""

from __future__ import annotations

import io
from pathlib import Path

from service.inspect.dump import write_json, write_text
from service.inspect.formats import dump
from service.inspect.source import open_source
from service.metadata.batches import encode_batch
from service.metadata.frames import Frame, UnknownRecord, newest
from service.metadata.records import (
    DelegationTokenRecord,
    MetadataRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

CREDENTIAL = UserScramCredentialRecord(
    name="alice",
    mechanism=1,
    salt=b"the salt",
    stored_key=b"the stored key",
    server_key=b"the server key",
    iterations=4096,
)


def dumped(folder: Path, *frames: Frame) -> str:
    """Both outputs of a log with the records."""
    log = folder / "__cluster_metadata-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(encode_batch(frames, base_offset=0, epoch=1, timestamp_ms=1))
    out = io.StringIO()
    for write in (write_json, write_text):
        write(dump(open_source(str(log))), out)
    return out.getvalue()


def test_keys_are_shown_as_their_lengths(tmp_path: Path) -> None:
    removal: MetadataRecord = RemoveUserScramCredentialRecord(name="bob", mechanism=2)
    shown = dumped(tmp_path, newest(CREDENTIAL), newest(removal))
    assert "the s" not in shown
    for words in (
        '"name": "alice", "mechanism": 1, "salt_bytes": 8',
        '"stored_key_bytes": 14, "server_key_bytes": 14, "iterations": 4096',
        "RemoveUserScramCredentialRecord",
        '"name": "bob", "mechanism": 2',
    ):
        assert words in shown


def test_a_tokens_record_is_shown_and_has_no_secret(tmp_path: Path) -> None:
    token = DelegationTokenRecord(
        owner="User:alice",
        requester="User:broker",
        renewers=("User:bob",),
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=2,
        token_id="id-1",
    )
    shown = dumped(tmp_path, newest(token), newest(RemoveDelegationTokenRecord(token_id="id-1")))
    for words in (
        '"type": "DelegationTokenRecord", "version": 0',
        '"owner": "User:alice", "requester": "User:broker", "renewers": ["User:bob"]',
        '"issue_timestamp": 1, "max_timestamp": 3, "expiration_timestamp": 2, "token_id": "id-1"',
        '"type": "RemoveDelegationTokenRecord", "version": 0',
    ):
        assert words in shown


def test_records_of_secrets_of_later_versions_are_shown_as_their_length(tmp_path: Path) -> None:
    shown = dumped(
        tmp_path,
        Frame(UnknownRecord(11, b"a later secret"), 7),
        Frame(UnknownRecord(10, b"a secret token"), 1),
        Frame(UnknownRecord(28_000, b"no secret"), 0),
    )
    assert "later secret" not in shown
    assert "secret token" not in shown
    assert shown.count("14 bytes") == 4
    assert "no secret" in shown
