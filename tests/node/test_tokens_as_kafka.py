"""A node of ours answers requests for delegation tokens as a real Apache Kafka 4.3.1 node did.

`tests/golden/metadata/capture_tokens.py` asked it, and kept its log and a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.base.world import system_world
from service.metadata.batches import decode_batches
from service.metadata.image import MetadataImage
from service.metadata.image_frames import image_frames
from service.metadata.publication import apply_batch
from service.metadata.raft.snapshots import parse_name
from service.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from service.metadata.snapshot_codec import decode_snapshot
from service.security.tokens import TokenSecret
from tests.golden.metadata.test_access_answers import encode
from tests.golden.metadata.token_steps import KEY, STEPS, WITHOUT_A_KEY, Script
from tests.node.conftest import NodeThread
from tests.node.test_delegation_tokens import CLOSED, SASL

FOLDER = Path(__file__).parents[1] / "golden" / "metadata" / "kafka-4.3.1"
CAPTURED: dict[str, Any] = json.loads((FOLDER / "token-answers.json").read_text())
LOG = FOLDER / "tokens" / "00000000000000000000.log"
SNAPSHOT = next((FOLDER / "tokens").glob("*.checkpoint"))
Start = Callable[..., NodeThread]


def script(node: NodeThread) -> Script:
    places = node.node.parts.listeners.places
    names = {"PLAINTEXT": "OPEN", "SASL_PLAINTEXT": "CLIENTS"}
    return Script({name: "{}:{}".format(*places[ours]) for name, ours in names.items()})


def differences(steps: tuple[tuple[Any, ...], ...], ours: list[Any], kafkas: list[Any]) -> list[Any]:
    return [one for one in zip(steps, ours, kafkas, strict=True) if one[1] != one[2]]


def test_every_answer_is_kafkas(start: Start) -> None:
    node = start(system_world(), **SASL, **CLOSED, **{"delegation.token.secret.key": KEY})
    assert differences(STEPS, script(node).run(STEPS), CAPTURED["steps"]) == []


def test_every_answer_without_a_key_is_kafkas(start: Start) -> None:
    ours = script(start(system_world(), **SASL, **CLOSED)).run(WITHOUT_A_KEY)
    assert differences(WITHOUT_A_KEY, ours, CAPTURED["without_a_key"]) == []


def test_hmacs_are_kafkas() -> None:
    assert len(CAPTURED["hmacs"]) == 7
    for token_id, told in CAPTURED["hmacs"].items():
        assert TokenSecret(KEY.encode()).hmac_of(token_id).hex() == told


def test_kafkas_log_and_snapshot_are_written_again_byte_for_byte() -> None:
    for file in (LOG, SNAPSHOT):
        data = file.read_bytes()
        assert b"".join(map(encode, decode_batches(data))) == data


def test_kafkas_log_says_what_its_answers_say() -> None:
    image = MetadataImage()
    kinds = []
    for batch in decode_batches(LOG.read_bytes()):
        image, _ = apply_batch(image, batch)
        kinds += [type(frame.record) for frame in batch.frames]
    assert kinds.count(DelegationTokenRecord) > 7, "made, and renewed"
    assert kinds.count(RemoveDelegationTokenRecord) == 4
    ids = list(CAPTURED["hmacs"])
    told = [
        [ids.index(one.id), str(one.owner), str(one.requester), list(map(str, one.renewers)),
         round((one.expiry_ms - one.issue_ms) / 60_000, -1), one.max_ms - one.issue_ms]
        for one in image.tokens.values()
    ]  # fmt: skip
    alices = [one for one in told if "User:alice" in one[1:3]]
    assert ["none", sorted(alices)] == CAPTURED["steps"][-1]
    assert len(alices) == len(told)


def test_kafkas_snapshot_has_the_tokens_that_ours_would_have() -> None:
    place = parse_name(SNAPSHOT.name)
    assert place is not None
    data = SNAPSHOT.read_bytes()
    image = decode_snapshot([data], **place._asdict())
    assert image.tokens
    kafkas = [frame for batch in decode_batches(data) for frame in batch.frames]
    of_tokens = [one for one in kafkas if isinstance(one.record, DelegationTokenRecord)]
    ours = [one for one in image_frames(image) if isinstance(one.record, DelegationTokenRecord)]
    assert sorted(ours, key=repr) == sorted(of_tokens, key=repr)
    assert type(list(image_frames(image))[-1].record) is type(kafkas[-1].record) is DelegationTokenRecord
