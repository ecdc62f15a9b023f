"""A bucket as Firn recommends it, made where none is: `firn bucket create`.

What exists is never touched: the name is looked up first, and only a bucket that this made is set up. Some
servers that speak S3 lack some settings; each step says how it went.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError, StorageError
from service.inspect.bucket_policy import partition_of
from service.remote.stores.errors import StoreRefused
from service.remote.stores.s3_address import S3Address
from service.remote.stores.s3_client import translated

UPLOAD_DAYS: Final = 7
"""Unfinished uploads are ended after so long; a node ends its own much sooner."""
OLD_VERSION_DAYS: Final = 30
"""So long what was deleted or replaced can be brought back."""
_FIRST_REGION: Final = "us-east-1"
"""The one that CreateBucket knows by no name."""


class Made(NamedTuple):
    """One step, and why it could not be done; None: it was."""

    what: str
    why: str | None = None


def create_bucket(client: Any, address: S3Address, kms_key: str | None) -> Iterator[Made]:
    """Make the bucket of `address` with boto3's `client` and set it up, step by step.

    Raises `ConfigError` where a bucket of this name exists, and what the store raises where it cannot be
    made; from then on each step that fails is told and the next is tried.
    """
    name = address.bucket
    if exists(client, name):
        raise ConfigError(
            f"s3://{name}: there is such a bucket, and what exists is not touched; "
            f"'firn bucket check s3://{name}' says whether it will do"
        )
    options: dict[str, Any] = {}
    if address.region != _FIRST_REGION:
        options["CreateBucketConfiguration"] = {"LocationConstraint": address.region}
    with translated(f"s3://{name}"):
        client.create_bucket(Bucket=name, **options)
    yield Made(f"the bucket {name} in {address.region}")
    for what, step in settings(client, address, kms_key):
        try:
            with translated(name):
                step()
        except StorageError as e:
            yield Made(what, str(e))
        else:
            yield Made(what)


def exists(client: Any, name: str) -> bool:
    """Whether there is a bucket of this name. Raises what the store does, and `StoreRefused` where it is not
    for us to know."""
    from botocore.exceptions import ClientError

    with translated(f"s3://{name}"):
        try:
            client.head_bucket(Bucket=name)
        except ClientError as e:
            status = e.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == 404:
                return False
            if status == 301:
                return True  # in another region
            if status == 403:
                raise StoreRefused(
                    f"s3://{name}: it is somebody else's, or these credentials may not ask for it (403)"
                ) from e
            raise
    return True


def settings(
    client: Any, address: S3Address, kms_key: str | None
) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is set of a new bucket, in words and as a call."""
    name = address.bucket
    yield (
        "versioning",
        lambda: client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"}),
    )
    yield (
        "encryption",
        lambda: client.put_bucket_encryption(
            Bucket=name, ServerSideEncryptionConfiguration=encryption(kms_key)
        ),
    )
    yield (
        "public access blocked",
        lambda: client.put_public_access_block(
            Bucket=name, PublicAccessBlockConfiguration=dict.fromkeys(_BLOCKS, True)
        ),
    )
    yield (
        f"lifecycle: unfinished uploads end after {UPLOAD_DAYS} days, old versions after {OLD_VERSION_DAYS}",
        lambda: client.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=lifecycle()),
    )
    if not (address.endpoint or "").startswith("http://"):
        yield (
            "a policy that refuses plain HTTP",
            lambda: client.put_bucket_policy(
                Bucket=name, Policy=tls_only(name, partition_of(address.region))
            ),
        )


_BLOCKS: Final = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def encryption(kms_key: str | None) -> dict[str, Any]:
    """By S3's own keys, or by `kms_key` with a bucket key, which saves a request to KMS per object."""
    if kms_key is None:
        return {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": kms_key}
    return {"Rules": [{"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}]}


def lifecycle() -> dict[str, Any]:
    """Nothing here deletes an object that is live: that is for Firn alone."""
    return {
        "Rules": [
            {
                "ID": "firn-leftovers",
                "Status": "Enabled",
                "Filter": {"Prefix": ""},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UPLOAD_DAYS},
                "NoncurrentVersionExpiration": {"NoncurrentDays": OLD_VERSION_DAYS},
                "Expiration": {"ExpiredObjectDeleteMarker": True},
            }
        ]
    }


def tls_only(bucket: str, partition: str) -> str:
    """The bucket's policy, as the text that S3 takes."""
    arn = f"arn:{partition}:s3:::{bucket}"
    statement = {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
