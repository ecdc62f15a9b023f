"""The least policies of AWS IAM that a node and a reader need for a bucket. [P]

The actions are those of the requests that Firn sends (docs/operations.md explains them):

- it writes objects, also in parts and conditionally (`s3:PutObject`), reads (`s3:GetObject`) and deletes them
  (`s3:DeleteObject`, which in a versioned bucket leaves a version behind)
- it lists the prefix, and tells a missing object from a forbidden one (`s3:ListBucket`)
- it aborts uploads in parts that fail (`s3:AbortMultipartUpload`)
- with a key of KMS it encrypts and decrypts (`kms:GenerateDataKey`, `kms:Decrypt`)

A reader, as Spark, reads what leads to records and lists; the copies of the metadata below `metadata/`, which
tell of access rules and quotas, are not for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from service.base.errors import ConfigError
from service.remote.format.keys import CLUSTER_KEY, DATA_PREFIX, TOPICS_KEY

OF_OBJECTS: Final = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject")
OF_LISTING: Final = "s3:ListBucket"
OF_UPLOADS: Final = "s3:ListBucketMultipartUploads"
"""Permission that `firn sweep` needs in addition, and a node does not."""
OF_KEYS: Final = ("kms:Decrypt", "kms:GenerateDataKey")
OF_A_READER: Final = ("s3:GetObject",)
OF_A_READERS_KEY: Final = ("kms:Decrypt",)
READABLE: Final = (CLUSTER_KEY, f"{DATA_PREFIX}/*", TOPICS_KEY)
"""Objects below the prefix that a reader gets."""

CHECK_PERMISSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "versioning": "s3:GetBucketVersioning",
        "encryption": "s3:GetEncryptionConfiguration",
        "lifecycle": "s3:GetLifecycleConfiguration",
        "public access": "s3:GetBucketPublicAccessBlock",
    }
)
"""Permissions that `firn bucket check` needs in addition, and a node does not."""

_KEY_ARN: Final = re.compile(r"arn:(aws[\w-]*):kms:[\w-]+:\d{12}:key/[\w-]+", re.ASCII)
_PARTITION: Final = re.compile(r"aws(-[a-z]+)*", re.ASCII)


def least_policy(
    bucket: str, prefix: str, *, kms_key: str | None = None, partition: str = "aws"
) -> dict[str, Any]:
    """Return the policy document for ``s3://bucket/prefix``; an empty `prefix` stands for the whole bucket.

    `kms_key` is the ARN of the customer's key that the bucket encrypts with, if any; `partition` is AWS's
    (``aws-cn``, ``aws-us-gov``). Raises `ConfigError` where either is invalid.
    """
    return _policy(bucket, prefix, (OF_OBJECTS, ("*",), OF_KEYS), kms_key, partition)


def reader_policy(
    bucket: str, prefix: str, *, kms_key: str | None = None, partition: str = "aws"
) -> dict[str, Any]:
    """Return the policy document of a reader of the archive; arguments and errors as of `least_policy`."""
    return _policy(bucket, prefix, (OF_A_READER, READABLE, OF_A_READERS_KEY), kms_key, partition)


def _policy(
    bucket: str,
    prefix: str,
    allowed: tuple[Sequence[str], Sequence[str], Sequence[str]],
    kms_key: str | None,
    partition: str,
) -> dict[str, Any]:
    """`allowed`: actions on objects, patterns of those below the prefix, actions on the key."""
    if not _PARTITION.fullmatch(partition):
        raise ConfigError(f"{partition!r} is not a partition of AWS, as aws, aws-cn or aws-us-gov")
    if kms_key is not None and not _KEY_ARN.fullmatch(kms_key):
        raise ConfigError(f"{kms_key!r} is not the ARN of a key of KMS")
    of_objects, below, of_key = allowed
    arn = f"arn:{partition}:s3:::{bucket}"
    home = f"{literal(prefix)}/" if prefix else ""
    objects = [f"{arn}/{home}{one}" for one in below]
    listing: dict[str, Any] = {
        "Sid": "ListPrefix",
        "Effect": "Allow",
        "Action": [OF_LISTING],
        "Resource": [arn],
    }
    if prefix:
        listing["Condition"] = {"StringLike": {"s3:prefix": [f"{home}*"]}}
    statements = [
        {"Sid": "Objects", "Effect": "Allow", "Action": [*of_objects], "Resource": objects},
        listing,
    ]
    if kms_key is not None:
        statements.append({"Sid": "Key", "Effect": "Allow", "Action": [*of_key], "Resource": [kms_key]})
    return {"Version": "2012-10-17", "Statement": statements}


def partition_of(region: str) -> str:
    """Return the partition of AWS that a region belongs to, as ARNs name it.

    >>> partition_of("eu-west-1"), partition_of("cn-north-1"), partition_of("us-gov-west-1")
    ('aws', 'aws-cn', 'aws-us-gov')
    """
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def literal(text: str) -> str:
    """Escape `text` for a policy's pattern, so that it matches nothing else.

    >>> literal("a*b$")
    'a${*}b${$}'
    """
    return re.sub(r"[*?$]", lambda found: f"${{{found[0]}}}", text)
