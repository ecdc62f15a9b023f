"""Creation of a bucket with the recommended settings: `firn bucket create`.

It never touches an existing bucket: it looks the name up first, and sets up only a bucket that it has
created. Some servers that speak S3 lack some settings; each step reports its result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError, StorageError
from service.inspect.bucket_policy import partition_of
from service.remote.stores.boto3_client import translated
from service.remote.stores.errors import StoreRefused
from service.remote.stores.s3_address import S3Address

UPLOAD_DAYS: Final = 7
"""Days after which unfinished uploads are aborted: those that a killed node left."""
OLD_VERSION_DAYS: Final = 30
"""Days for which a deleted or replaced object can be restored."""
_FIRST_REGION: Final = "us-east-1"
"""The region for which CreateBucket takes no location constraint."""


class CreationStep(NamedTuple):
    """One step, and why it failed; None: it succeeded."""

    what: str
    why: str | None = None


def create_bucket(client: Any, address: S3Address, kms_key: str | None) -> Iterator[CreationStep]:
    """Create the bucket of `address` with boto3's `client` and set it up, step by step.

    Raises `ConfigError` where a bucket of this name exists, and the store's error where it cannot be created;
    after that each failed step is reported and the next one is tried.
    """
    name = address.bucket
    if exists(client, name):
        raise ConfigError(
            f"s3://{name}: this bucket exists, and existing buckets are not changed; "
            f"'firn bucket check s3://{name}' checks whether it is suitable"
        )
    options: dict[str, Any] = {}
    if address.region != _FIRST_REGION:
        options["CreateBucketConfiguration"] = {"LocationConstraint": address.region}
    with translated(f"s3://{name}"):
        client.create_bucket(Bucket=name, **options)
    yield CreationStep(f"the bucket {name} in {address.region}")
    for what, step in settings(client, address, kms_key):
        try:
            with translated(name):
                step()
        except StorageError as e:
            yield CreationStep(what, str(e))
        else:
            yield CreationStep(what)


def exists(client: Any, name: str) -> bool:
    """Return whether there is a bucket of this name.

    Raises the store's error, and `StoreRefused` where the credentials may not know.
    """
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
                    f"s3://{name}: it is another account's, or these credentials may not query it (403)"
                ) from e
            raise
    return True


def settings(
    client: Any, address: S3Address, kms_key: str | None
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the settings of a new bucket, each as a description and a call."""
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
    """Return the encryption with S3's own keys, or with `kms_key` and a bucket key.

    A bucket key saves a request to KMS per object.
    """
    if kms_key is None:
        return {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": kms_key}
    return {"Rules": [{"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}]}


def lifecycle() -> dict[str, Any]:
    """Return the lifecycle rules. None deletes a live object: only Firn does."""
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
    """Return the bucket's policy that refuses plain HTTP, as the text that S3 takes."""
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
