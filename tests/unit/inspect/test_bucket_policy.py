"""The least policy of a node: what it names, and what is advised about a bucket's own settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from service.base.errors import ConfigError
from service.inspect.bucket_create import encryption, lifecycle, tls_only
from service.inspect.bucket_policy import least_policy, reader_policy
from service.inspect.bucket_settings import (
    check_lifecycle,
    encryption_advice,
    ends_uploads,
    lifecycle_advice,
    public_advice,
    versioning_advice,
)
from service.inspect.step_result import Outcome

KEY = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"


def by_sid(policy: dict[str, Any]) -> dict[str, Any]:
    return {statement["Sid"]: statement for statement in policy["Statement"]}


def test_objects_are_those_below_the_prefix() -> None:
    found = by_sid(least_policy("bucket", "some/prefix"))
    assert found["Objects"]["Resource"] == ["arn:aws:s3:::bucket/some/prefix/*"]
    assert found["ListPrefix"]["Resource"] == ["arn:aws:s3:::bucket"]
    assert found["ListPrefix"]["Condition"] == {"StringLike": {"s3:prefix": ["some/prefix/*"]}}
    # `firn sweep` needs it, a node does not.
    assert "s3:ListBucketMultipartUploads" not in str(found)


def test_a_whole_bucket_has_no_condition() -> None:
    found = by_sid(least_policy("bucket", ""))
    assert found["Objects"]["Resource"] == ["arn:aws:s3:::bucket/*"]
    assert "Condition" not in found["ListPrefix"]


def test_nothing_is_allowed_on_everything() -> None:
    statements = least_policy("bucket", "prefix", kms_key=KEY)["Statement"]
    assert statements
    for statement in statements:
        assert "*" not in statement["Action"]
        assert all(not action.endswith("*") for action in statement["Action"])
        assert "*" not in statement["Resource"]


def test_a_key_of_kms_is_named_alone() -> None:
    found = by_sid(least_policy("bucket", "prefix", kms_key=KEY))
    assert found["Key"]["Resource"] == [KEY]
    assert found["Key"]["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    with pytest.raises(ConfigError, match="not a partition"):
        least_policy("bucket", "prefix", partition="mars")
    for wrong in ("alias/mine", f"{KEY}*", "arn:aws:s3:::bucket"):
        with pytest.raises(ConfigError, match="ARN of a key"):
            least_policy("bucket", "prefix", kms_key=wrong)


def test_other_partitions_have_their_own_names() -> None:
    found = by_sid(least_policy("bucket", "prefix", partition="aws-cn"))
    assert found["Objects"]["Resource"] == ["arn:aws-cn:s3:::bucket/prefix/*"]


def test_a_reader_gets_no_copy_of_the_metadata_and_writes_nothing() -> None:
    assert reader_policy("bucket", "some/prefix", kms_key=KEY)["Statement"] == [
        {
            "Sid": "Objects",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [
                "arn:aws:s3:::bucket/some/prefix/cluster.json",
                "arn:aws:s3:::bucket/some/prefix/data/*",
                "arn:aws:s3:::bucket/some/prefix/topics.json",
            ],
        },
        {
            "Sid": "ListPrefix",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": ["arn:aws:s3:::bucket"],
            "Condition": {"StringLike": {"s3:prefix": ["some/prefix/*"]}},
        },
        {"Sid": "Key", "Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": [KEY]},
    ]
    (objects, _) = reader_policy("bucket", "")["Statement"]
    assert objects["Resource"][1] == "arn:aws:s3:::bucket/data/*"


def test_a_prefix_with_signs_of_patterns_is_taken_literally() -> None:
    found = by_sid(least_policy("bucket", "a*b?"))
    assert found["Objects"]["Resource"] == ["arn:aws:s3:::bucket/a${*}b${?}/*"]


def test_the_bucket_policy_that_firn_creates_passes_its_own_check() -> None:
    assert lifecycle_advice(lifecycle()) is None
    assert ends_uploads(lifecycle(), "some/prefix/data/")
    assert encryption_advice({"ServerSideEncryptionConfiguration": encryption(None)}) is None
    assert encryption_advice({"ServerSideEncryptionConfiguration": encryption(KEY)}) is None
    assert versioning_advice({"Status": "Enabled"}) is None


def test_advice_says_what_is_lacking() -> None:
    assert "off" in (versioning_advice({}) or "")
    assert "encrypted" in (encryption_advice({}) or "")
    assert "not blocked" in (
        public_advice({"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}}) or ""
    )
    by_age = {"Rules": [{"ID": "x", "Status": "Enabled", "Expiration": {"Days": 1}}]}
    assert "deletes objects by age" in (lifecycle_advice(by_age) or "")
    switched_off = {"Rules": [{"ID": "x", "Status": "Disabled", "Expiration": {"Days": 1}}]}
    assert lifecycle_advice(switched_off) is None


@pytest.mark.parametrize(
    ("rule", "covers"),
    [
        ({}, True),
        ({"Filter": {}}, True),
        ({"Filter": {"Prefix": ""}}, True),
        ({"Filter": {"Prefix": "some/prefix/data/"}}, True),
        ({"Filter": {"And": {"Prefix": "some/"}}}, True),
        ({"Prefix": "some/"}, True),
        ({"Filter": {"Prefix": "some/prefix/data/x"}}, False),
        ({"Filter": {"And": {"Prefix": "other/"}}}, False),
        ({"Prefix": "other/"}, False),
        ({"Status": "Disabled"}, False),
        ({"AbortIncompleteMultipartUpload": None}, False),
    ],
)
def test_a_rule_ends_uploads_of_the_prefix_that_it_covers(rule: dict[str, Any], covers: bool) -> None:
    usual = {"Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
    assert ends_uploads({"Rules": [{**usual, **rule}]}, "some/prefix/data/") == covers


class Store:
    """A client of a store that answers a request for lifecycle rules by `answer`."""

    def __init__(self, answer: dict[str, Any] | ClientError) -> None:
        self.answer = answer

    def get_bucket_lifecycle_configuration(self, **_: Any) -> dict[str, Any]:
        if isinstance(self.answer, ClientError):
            raise self.answer
        return self.answer


def refusal(code: str, server: str = "") -> ClientError:
    headers = {"HTTPHeaders": {"server": server}}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": headers}, "GetBucketLifecycle")


@pytest.mark.parametrize(
    ("answer", "outcome", "why"),
    [
        (refusal("NoSuchLifecycleConfiguration"), Outcome.FAILED, "no rule with AbortIncomplete"),
        (
            refusal("NoSuchLifecycleConfiguration", "MinIO"),
            Outcome.LEFT_OUT,
            "unknown: MinIO has no such rules",
        ),
        (refusal("NotImplemented"), Outcome.LEFT_OUT, "unknown. See to it that the store ends uploads"),
        (refusal("AccessDenied"), Outcome.LEFT_OUT, "unknown. See to it that the store ends uploads"),
        ({"Name": "bucket"}, Outcome.LEFT_OUT, "unknown. See to it that the store ends uploads"),
        (lifecycle(), Outcome.FINE, ""),
    ],
)
def test_a_rule_for_uploads_is_demanded_of_stores_that_have_rules(
    answer: dict[str, Any] | ClientError, outcome: Outcome, why: str
) -> None:
    _, found = check_lifecycle(Store(answer), "bucket", "data/")
    assert found.what == "lifecycle rule for unfinished uploads"
    assert found.outcome is outcome
    assert found.why.startswith(why)


def test_plain_http_is_refused_to_everybody() -> None:
    (statement,) = json.loads(tls_only("bucket", "aws-cn"))["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Principal"] == "*"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == ["arn:aws-cn:s3:::bucket", "arn:aws-cn:s3:::bucket/*"]
