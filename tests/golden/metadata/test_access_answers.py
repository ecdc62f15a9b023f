"""Our controller answers requests about ACLs, credentials and quotas as a real Apache Kafka 4.3.1 node did.

`capture_access.py` sent them, one after another, to a node whose log and snapshot are in `access/`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.controller_server.handlers import access
from service.metadata.access_records import entry_differences, other_differences
from service.metadata.batches import MetadataBatch, decode_batches, encode_batch, encode_control_batch
from service.metadata.controller.decision import ControllerResult
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.image_frames import image_frames
from service.metadata.publication import apply_batch
from service.metadata.raft.snapshots import parse_name
from service.metadata.snapshot_codec import decode_snapshot
from service.security.session import NODE_ITSELF
from service.serving.handlers import describe_acls, describe_client_quotas, describe_user_scram_credentials
from tests.golden.metadata.access_requests import answer_of, request_of
from tests.unit.metadata.controllers import running

FOLDER = Path(__file__).parent / "kafka-4.3.1"
ACCESS = FOLDER / "access"
LOG = "00000000000000000000.log"
SNAPSHOT = next(iter(sorted(one.name for one in ACCESS.glob("*.checkpoint"))), "")
TOOL_CHANGES = 12
"""Changes that Kafka's tools made before the captured requests."""
STEPS: list[list[Any]] = json.loads((FOLDER / "access-answers.json").read_text())


def encode(batch: MetadataBatch) -> bytes:
    place = {"base_offset": batch.base_offset, "epoch": batch.epoch, "timestamp_ms": batch.timestamp_ms}
    if batch.frames:
        return bytes(encode_batch(batch.frames, **place))
    (control,) = batch.control
    assert control.message is not None
    return bytes(encode_control_batch(control.message, **place))


def image_up_to(end_offset: int) -> MetadataImage:
    image = MetadataImage()
    for batch in decode_batches((ACCESS / LOG).read_bytes()):
        if batch.last_offset < end_offset:
            image, _ = apply_batch(image, batch)
    return image


def by_tools() -> MetadataImage:
    """The image before the first of the captured requests that changes anything: what Kafka's tools made."""
    kinds = {11, 14, 18, 19, 22}
    image = MetadataImage()
    made = 0
    for batch in decode_batches((ACCESS / LOG).read_bytes()):
        made += bool(kinds & {frame.api_key for frame in batch.frames})
        if made > TOOL_CHANGES:
            break
        image, _ = apply_batch(image, batch)
    return image


def test_every_batch_is_written_again_byte_for_byte() -> None:
    for name in (LOG, SNAPSHOT):
        data = (ACCESS / name).read_bytes()
        assert b"".join(map(encode, decode_batches(data))) == data


def test_the_log_has_all_records_of_access() -> None:
    frames = [frame for batch in decode_batches((ACCESS / LOG).read_bytes()) for frame in batch.frames]
    assert {11, 14, 18, 19, 22} < {frame.api_key for frame in frames}


def test_the_log_up_to_the_snapshot_says_what_the_snapshot_says() -> None:
    snapshot = parse_name(SNAPSHOT)
    assert snapshot is not None
    image = image_up_to(snapshot.end_offset)
    assert image.acls.entries
    assert image.scram
    assert image.client_quotas
    assert image == decode_snapshot([(ACCESS / SNAPSHOT).read_bytes()], **snapshot._asdict())


def test_a_snapshot_of_ours_has_the_records_that_kafkas_has_in_its_order_of_kinds() -> None:
    snapshot = parse_name(SNAPSHOT)
    assert snapshot is not None
    data = (ACCESS / SNAPSHOT).read_bytes()
    kafkas = [frame for batch in decode_batches(data) for frame in batch.frames]
    ours = list(image_frames(decode_snapshot([data], **snapshot._asdict())))
    access = {11, 14, 18}

    def told(frames: list[Any]) -> list[str]:
        return sorted(
            f"{frame.api_key} {_parts_sorted(frame.record)!r}" for frame in frames if frame.api_key in access
        )

    assert told(ours) == told(kafkas)
    assert list(dict.fromkeys(one.api_key for one in ours)) == list(
        dict.fromkeys(one.api_key for one in kafkas)
    )


def _parts_sorted(record: Any) -> Any:
    """A quota's record with the parts of its entity in one order; credentials with their keys."""
    values = {name: getattr(record, name) for name in record.__slots__}
    if "entity" in values:
        values["entity"] = sorted(map(repr, values["entity"]))
    return values


# -- answers


HANDLERS: dict[str, Any] = {
    "create": access.create_acls,
    "describe": describe_acls.handle,
    "delete": access.delete_acls,
    "quotas": access.alter_client_quotas,
    "describe_quotas": describe_client_quotas.handle,
    "scram": access.alter_scram_credentials,
    "describe_scram": describe_user_scram_credentials.handle,
}
UNSAID = ["unknown_server_error", None]
"""Kafka's answer to all entries of a request of which one has a number that no entry has: it fails to make
an object of it. Ours says of each entry what was wrong."""
WRONG = {
    '[2,"",3,"User:a","*",3,3]': "Invalid empty resource name",
    '[9,"x",3,"User:a","*",3,3]': "Invalid resourceType UNKNOWN",
    '[1,"x",3,"User:a","*",3,3]': "Invalid resourceType ANY",
    '[2,"x",1,"User:a","*",3,3]': "Invalid patternType ANY",
    '[2,"x",2,"User:a","*",3,3]': "Invalid patternType MATCH",
    '[2,"x",9,"User:a","*",3,3]': "Invalid patternType UNKNOWN",
    '[2,"x",3,"User:a","*",1,3]': "Invalid operation ANY",
    '[2,"x",3,"User:a","*",99,3]': "Invalid operation UNKNOWN",
    '[2,"x",3,"User:a","*",3,1]': "Invalid permissionType ANY",
    '[1,"",1,"a","*",1,1]': "Invalid empty resource name",
}
OTHER_WORDS = {
    "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId": (
        "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    ),
    "Ignoring duplicate entity ClientQuotaEntity(entries={user=v})": (
        "Duplicate quota key not updating quota for this entity {user=v}"
    ),
    "Ignoring duplicate entity ClientQuotaEntity(entries={user=d})": "Ignoring duplicate entity {user=d}",
}


def expected(kind: str, asked: Any, answer: Any) -> Any:
    """Kafka's answer, but for what ours says better."""
    if kind == "create" and UNSAID in answer:
        assert all(one == UNSAID for one in answer)
        return [["invalid_request", WRONG[json.dumps(one, separators=(",", ":"))]] for one in asked]
    if kind == "quotas":
        return [[parts, error, OTHER_WORDS.get(words, words)] for parts, error, words in answer]
    return answer


def test_every_answer_is_kafkas(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            given, empty = by_tools(), MetadataImage()
            others = filter(None, other_differences(empty, given))
            records = [*entry_differences(empty.acls, given.acls), *others]
            frames = tuple(map(newest, records))
            await controller._decisions.decide(lambda image: ControllerResult(frames, None))
            context = SimpleNamespace(session=NODE_ITSELF, client_id="")
            for kind, asked, answer in STEPS:
                host = SimpleNamespace(controller=controller, image=controller.image, authorizer=object())
                found = HANDLERS[kind](host, context, request_of(kind, asked))
                ours = answer_of(kind, await found if isinstance(found, Awaitable) else found)
                assert json.loads(json.dumps(ours)) == expected(kind, asked, answer), (kind, asked)
            kafka, image = image_up_to(1 << 62), controller.image
            assert set(image.acls.entries.values()) == set(kafka.acls.entries.values())
            assert image.scram == kafka.scram
            assert image.client_quotas == kafka.client_quotas

    asyncio.run(scenario())
