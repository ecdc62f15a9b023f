"""Old versions of deleted objects in an S3 bucket that keeps versions: listed, and removed by their ids.

A DELETE there leaves the object's version, and a marker. obstore cannot list versions, boto3 can; it takes
s3:GetBucketVersioning, s3:ListBucketVersions and s3:DeleteObjectVersion. Calls block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from service.remote.stores.boto3_client import translated
from service.remote.stores.s3_address import S3Address

AT_ONCE: Final = 1_000
_ALL: Final = "old versions"


class OldVersion(NamedTuple):
    """A version of an object, or a delete marker; `key` is relative to the prefix."""

    key: str
    version_id: str
    modified_ms: int


class KeptVersion(NamedTuple):
    """A version that the store does not remove; `until` is the end of its retention, empty without one."""

    key: str
    version_id: str
    why: str
    until: str


class OldVersions:
    """Versions below one prefix."""

    def __init__(self, client: Any, address: S3Address) -> None:
        """`client` is boto3's for S3."""
        self._client = client
        self._bucket = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""

    def are_kept(self) -> bool:
        """Return whether the bucket keeps versions, or did once."""
        with translated("versioning of the bucket"):
            answer = self._client.get_bucket_versioning(Bucket=self._bucket)
        return answer.get("Status") in ("Enabled", "Suspended")

    def found(self, below: str, *, takes_current: bool = False) -> Iterator[OldVersion]:
        """Yield the versions below a folder that are not current, with `takes_current` all of them.

        Those that were yielded may be removed meanwhile: then others may be missing.
        """
        for page in self._pages(below):
            for one in page.get("Versions", ()):
                if takes_current or not one.get("IsLatest"):
                    yield self._version(one)

    def markers(self, below: str) -> Iterator[OldVersion]:
        """Yield the delete markers below a folder. Removed before the version that it hides, a marker would
        make that current again."""
        for page in self._pages(below):
            yield from map(self._version, page.get("DeleteMarkers", ()))

    def _pages(self, below: str) -> Iterator[Any]:
        pages = self._client.get_paginator("list_object_versions")
        with translated(_ALL):
            yield from pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}{below}/")

    def _version(self, row: Any) -> OldVersion:
        modified: datetime = row["LastModified"]
        key = str(row["Key"]).removeprefix(self._prefix)
        return OldVersion(key, str(row["VersionId"]), int(modified.timestamp() * 1000))

    def remove(self, versions: Sequence[OldVersion]) -> list[KeptVersion]:
        """Remove versions; return those that the store keeps."""
        kept = []
        for at in range(0, len(versions), AT_ONCE):
            some = versions[at : at + AT_ONCE]
            objects = [{"Key": f"{self._prefix}{one.key}", "VersionId": one.version_id} for one in some]
            with translated(_ALL):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                key = str(error.get("Key", "")).removeprefix(self._prefix)
                version_id = str(error.get("VersionId") or "")
                why = f"{error.get('Code', '?')}: {error.get('Message', '')}"
                meant = [one.version_id for one in some if one.key == key]  # stores need not say which
                ends = [self._retained_until(key, one) for one in ([version_id] if version_id else meant)]
                kept.append(KeptVersion(key, version_id, why, max(ends, default="")))
        return kept

    def _retained_until(self, key: str, version_id: str) -> str:
        """Return the end of a version's retention as text, empty where it has none or is not told."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.head_object(
                Bucket=self._bucket, Key=f"{self._prefix}{key}", VersionId=version_id
            )
        except (BotoCoreError, ClientError):
            return ""
        until = answer.get("ObjectLockRetainUntilDate")
        return until.isoformat(timespec="seconds") if isinstance(until, datetime) else ""

    def expiry_days(self) -> int | None:
        """Return the days after which a lifecycle rule takes old versions of the prefix; None without one, or
        where it is not told."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
        except (BotoCoreError, ClientError):
            return None
        found = []
        for rule in answer.get("Rules", ()):
            where = rule.get("Filter") or rule
            prefix = str((where.get("And") or where).get("Prefix") or "")
            days = rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays")
            if rule.get("Status") == "Enabled" and days is not None and self._prefix.startswith(prefix):
                found.append(int(days))
        return min(found, default=None)
