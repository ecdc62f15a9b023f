"""The least policy of a node: what it names, and what is advised about a bucket's own settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.inspect.bucket_check import (
    encryption_advice,
    lifecycle_advice,
    public_advice,
    versioning_advice,
)
from service.inspect.bucket_create import encryption, lifecycle, tls_only
from service.inspect.bucket_policy import least_policy

KEY = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"


def by_sid(policy: dict[str, Any]) -> dict[str, Any]:
    return {statement["Sid"]: statement for statement in policy["Statement"]}


def test_objects_are_those_below_the_prefix() -> None:
    found = by_sid(least_policy("bucket", "some/prefix"))
    assert found["Objects"]["Resource"] == ["arn:aws:s3:::bucket/some/prefix/*"]
    assert found["ListPrefix"]["Resource"] == ["arn:aws:s3:::bucket"]
    assert found["ListPrefix"]["Condition"] == {"StringLike": {"s3:prefix": ["some/prefix/*"]}}
    # ListBucketMultipartUploads knows no condition for a prefix: with one it would never be allowed.
    assert "Condition" not in found["UnfinishedUploads"]


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


def test_a_prefix_with_signs_of_patterns_is_taken_literally() -> None:
    found = by_sid(least_policy("bucket", "a*b?"))
    assert found["Objects"]["Resource"] == ["arn:aws:s3:::bucket/a${*}b${?}/*"]


def test_the_bucket_policy_that_firn_creates_passes_its_own_check() -> None:
    assert lifecycle_advice(lifecycle()) is None
    assert encryption_advice({"ServerSideEncryptionConfiguration": encryption(None)}) is None
    assert encryption_advice({"ServerSideEncryptionConfiguration": encryption(KEY)}) is None
    assert versioning_advice({"Status": "Enabled"}) is None


def test_advice_says_what_is_lacking() -> None:
    assert "off" in (versioning_advice({}) or "")
    assert "encrypted" in (encryption_advice({}) or "")
    assert "unfinished uploads" in (lifecycle_advice({"Rules": []}) or "")
    assert "not blocked" in (
        public_advice({"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}}) or ""
    )
    by_age = {"Rules": [{"ID": "x", "Status": "Enabled", "Expiration": {"Days": 1}}]}
    assert "deletes objects by age" in (lifecycle_advice(by_age) or "")
    switched_off = {"Rules": [{"ID": "x", "Status": "Disabled", "Expiration": {"Days": 1}}]}
    assert "unfinished uploads" in (lifecycle_advice(switched_off) or "")


def test_plain_http_is_refused_to_everybody() -> None:
    (statement,) = json.loads(tls_only("bucket", "aws-cn"))["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Principal"] == "*"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == ["arn:aws-cn:s3:::bucket", "arn:aws-cn:s3:::bucket/*"]
