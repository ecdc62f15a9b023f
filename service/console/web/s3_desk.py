"""Queries that only S3 itself answers: storage classes, unfinished uploads, lifecycle rules, versioning.

obstore has no calls for these, so they use aioboto3, which only the console imports (extra `console`).
Endpoint, region and credentials are those of `open_store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from service.base.errors import StorageError
from service.console.web.survey import STANDARD, ListedObject
from service.remote.stores.aws_credentials import credential_source
from service.remote.stores.s3_access import S3Access
from service.remote.stores.s3_address import S3Address, s3_address

PAGE: Final = 1000
MOST_UPLOADS: Final = 1000
CONNECT_S: Final = 3
READ_S: Final = 10


class S3Unavailable(StorageError):
    """S3 did not answer, or refused."""


@dataclass(slots=True)
class BucketFacts:
    """Settings of the bucket as text; `problems` are failed queries and the permissions that they need.

    `more_uploads`: there are more than `uploads`. `expires`: an enabled rule deletes objects of Firn.
    """

    uploads: int | None = None
    more_uploads: bool = False
    expires: bool = False
    oldest_upload_ms: int | None = None
    rules: list[str] = field(default_factory=list)
    versioning: str | None = None
    encryption: str | None = None
    problems: list[str] = field(default_factory=list)


def is_installed() -> bool:
    """Return whether aioboto3 can be imported."""
    from importlib.util import find_spec

    return find_spec("aioboto3") is not None


class S3Desk:
    """Client of one bucket. Owned by the event loop."""

    def __init__(
        self, url: str, endpoint: str | None, region: str | None, environ: Mapping[str, str], pool: Executor
    ) -> None:
        self._address: S3Address = s3_address(url, endpoint, region, environ)
        self._source = credential_source(environ, S3Access(), self._address.region)
        self._pool = pool
        self._prefix = f"{self._address.prefix}/" if self._address.prefix else ""

    def _prepared(self) -> dict[str, Any]:
        """Return credentials. Blocks: they may come over the network, and the import takes half a second."""
        import_module("aioboto3")
        if self._source is None:
            return {}
        found = self._source.fetch(fresh=False)
        return {
            "aws_access_key_id": found["access_key_id"],
            "aws_secret_access_key": found["secret_access_key"],
            "aws_session_token": found.get("token"),
        }

    async def _client(self) -> Any:
        keys = await asyncio.get_running_loop().run_in_executor(self._pool, self._prepared)
        import aioboto3
        from botocore.config import Config

        address = self._address
        return aioboto3.Session().client(
            "s3",
            endpoint_url=address.endpoint,
            region_name=address.region,
            config=Config(
                connect_timeout=CONNECT_S,
                read_timeout=READ_S,
                retries={"total_max_attempts": 2},
                s3={"addressing_style": "path" if address.by_path else "auto"},
            ),
            **keys,
        )

    async def listing(self) -> AsyncGenerator[list[ListedObject], None]:
        """Yield all objects below the prefix, page by page, keys relative to it. Raises `S3Unavailable`."""
        try:
            async with await self._client() as client:
                pages = client.get_paginator("list_objects_v2").paginate(
                    Bucket=self._address.bucket, Prefix=self._prefix, PaginationConfig={"PageSize": PAGE}
                )
                async for page in pages:
                    yield [
                        ListedObject(
                            one["Key"].removeprefix(self._prefix),
                            one["Size"],
                            int(one["LastModified"].timestamp() * 1000),
                            one.get("StorageClass", STANDARD),
                        )
                        for one in page.get("Contents", ())
                    ]
        except Exception as e:
            raise translated(e, "s3:ListBucket") from e

    async def facts(self) -> BucketFacts:
        """Return the bucket's settings; failed queries become `problems`. Raises no error of S3."""
        found = BucketFacts()
        try:
            async with await self._client() as client:
                for ask in QUESTIONS:
                    try:
                        await ask(client, self._address.bucket, self._prefix, found)
                    except Exception as e:
                        found.problems.append(str(translated(e, PERMISSIONS[ask.__name__])))
        except Exception as e:
            found.problems.append(str(translated(e, "")))
        return found


PERMISSIONS: Final = {
    "ask_uploads": "s3:ListBucketMultipartUploads",
    "ask_rules": "s3:GetLifecycleConfiguration",
    "ask_versioning": "s3:GetBucketVersioning",
    "ask_encryption": "s3:GetEncryptionConfiguration",
}
_NONSENSE: Final = (LookupError, TypeError, AttributeError, ValueError)
"""Errors caused by a response that lacks required fields."""
_ABSENT: Final = ("NoSuchLifecycleConfiguration", "ServerSideEncryptionConfigurationNotFoundError")


async def ask_uploads(client: Any, bucket: str, prefix: str, found: BucketFacts) -> None:
    page = await client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, MaxUploads=MOST_UPLOADS)
    begun = [int(one["Initiated"].timestamp() * 1000) for one in page.get("Uploads", ())]
    found.uploads, found.oldest_upload_ms = len(begun), min(begun, default=None)
    found.more_uploads = bool(page.get("IsTruncated"))


async def ask_rules(client: Any, bucket: str, prefix: str, found: BucketFacts) -> None:
    try:
        answer = await client.get_bucket_lifecycle_configuration(Bucket=bucket)
    except Exception as e:
        if _code(e) in _ABSENT:
            return
        raise
    rules = answer.get("Rules", ())
    found.rules = [_rule(one) for one in rules]
    found.expires = any(_expires(one, prefix) for one in rules)


def _expires(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether an enabled rule deletes current objects below `prefix`, or some of them."""
    expiry = rule.get("Expiration") or {}
    if rule.get("Status") != "Enabled" or not (expiry.get("Days") or expiry.get("Date")):
        return False
    below = _below(rule)
    return below.startswith(prefix) or prefix.startswith(below)


def _below(rule: Mapping[str, Any]) -> str:
    """Return the prefix of a rule, "" for the whole bucket."""
    wanted = rule.get("Filter") or {}
    return str((wanted.get("And") or wanted).get("Prefix") or rule.get("Prefix") or "")


def _rule(rule: Mapping[str, Any]) -> str:
    does = []
    if abort := rule.get("AbortIncompleteMultipartUpload"):
        does.append(f"aborts unfinished uploads after {abort.get('DaysAfterInitiation')} days")
    if (expiry := rule.get("Expiration")) and (expiry.get("Days") or expiry.get("Date")):
        days, date = expiry.get("Days"), expiry.get("Date")
        does.append(f"DELETES objects {f'after {days} days' if days else f'from {date} on'}")
    if old := rule.get("NoncurrentVersionExpiration"):
        does.append(f"deletes old versions after {old.get('NoncurrentDays')} days")
    does += [
        f"moves objects to {one.get('StorageClass')} after {one.get('Days') or 0} days"
        for one in rule.get("Transitions", ())
    ]
    where = f" below {_below(rule)}" if _below(rule) else ""
    name = f"{rule.get('ID', 'a rule')} ({rule.get('Status')})"
    return f"{name}{where}: {', '.join(does) or 'nothing known'}"


async def ask_versioning(client: Any, bucket: str, prefix: str, found: BucketFacts) -> None:
    answer = await client.get_bucket_versioning(Bucket=bucket)
    found.versioning = answer.get("Status", "off")


async def ask_encryption(client: Any, bucket: str, prefix: str, found: BucketFacts) -> None:
    try:
        answer = await client.get_bucket_encryption(Bucket=bucket)
    except Exception as e:
        if _code(e) in _ABSENT:
            found.encryption = "none of the bucket's own"
            return
        raise
    rules = answer.get("ServerSideEncryptionConfiguration", {}).get("Rules", ())
    kinds = [one.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm") for one in rules]
    found.encryption = ", ".join(kind for kind in kinds if kind) or "none of the bucket's own"


QUESTIONS: Final = (ask_uploads, ask_rules, ask_versioning, ask_encryption)


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def translated(error: Exception, permission: str) -> StorageError:
    """Return an error of S3 as a `StorageError` with one line; raise any other error unchanged."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, ImportError):
        return S3Unavailable(f"aioboto3 cannot be loaded: {error}")
    if isinstance(error, _NONSENSE):
        return S3Unavailable(f"malformed response of the store ({type(error).__name__}: {error})")
    from botocore.exceptions import BotoCoreError, ClientError

    if not isinstance(error, BotoCoreError | ClientError | OSError | TimeoutError):
        raise error
    if _code(error) in ("AccessDenied", "403"):
        return S3Unavailable(f"not permitted: {permission} is needed")
    return S3Unavailable(" ".join(str(error).split()))
