"""Facts that S3 reports of a bucket, in words; and malformed answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.console.web import s3_desk
from service.console.web.s3_desk import BucketFacts, S3Unavailable, ask_rules, ask_uploads, translated

EXPIRY = {"ID": "old", "Status": "Enabled", "Expiration": {"Days": 30}}


class Client:
    """Answers what it was given."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    async def get_bucket_lifecycle_configuration(self, **_: Any) -> dict[str, Any]:
        return self._answer

    async def list_multipart_uploads(self, **_: Any) -> dict[str, Any]:
        return self._answer


def rules(*found: dict[str, Any], prefix: str = "log/") -> BucketFacts:
    facts = BucketFacts()
    asyncio.run(ask_rules(Client({"Rules": found}), "b", prefix, facts))
    return facts


@pytest.mark.parametrize(
    ("more", "expires"),
    [
        ({"Filter": {"Prefix": ""}}, True),
        ({"Filter": {}}, True),
        ({"Prefix": "log/"}, True),
        ({"Filter": {"Prefix": "log/data"}}, True),
        ({"Filter": {"And": {"Prefix": "lo", "Tags": []}}}, True),
        ({"Filter": {"Prefix": "other/"}}, False),
        ({"Filter": {"Prefix": ""}, "Status": "Disabled"}, False),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, False),
        ({"ID": "DELETES nothing", "Expiration": {}}, False),
    ],
)
def test_a_rule_deletes_where_it_is_in_force_for_what_is_ours(more: dict[str, Any], expires: bool) -> None:
    assert rules({**EXPIRY, **more}).expires is expires


def test_rules_are_told_with_where_they_hold() -> None:
    (told,) = rules(
        {**EXPIRY, "Filter": {"Prefix": "log/"}, "Transitions": [{"StorageClass": "GLACIER_IR"}]}
    ).rules
    assert (
        told
        == "old (Enabled) below log/: DELETES objects after 30 days, moves objects to GLACIER_IR after 0 days"
    )


def test_more_uploads_than_were_listed_are_said_to_be_more() -> None:
    facts = BucketFacts()
    asyncio.run(ask_uploads(Client({"IsTruncated": True}), "b", "", facts))
    assert facts.more_uploads


@pytest.mark.parametrize(
    "error", [KeyError("LastModified"), TypeError("x"), AttributeError("x"), ValueError("x")]
)
def test_an_answer_that_makes_no_sense_is_the_stores_fault(error: Exception) -> None:
    found = translated(error, "s3:ListBucket")
    assert isinstance(found, S3Unavailable)
    assert "malformed response" in str(found)


def test_a_client_that_cannot_be_loaded_is_named() -> None:
    assert "aioboto3 cannot be loaded" in str(translated(ImportError("botocore is too new"), ""))


def test_a_bug_stays_one() -> None:
    with pytest.raises(AssertionError):
        translated(AssertionError(), "")


def test_every_question_knows_the_permission_that_it_takes() -> None:
    assert {ask.__name__ for ask in s3_desk.QUESTIONS} == set(s3_desk.PERMISSIONS)
