"""Unfinished multipart uploads of a prefix in S3: listed and aborted by `firn sweep`.

A process that is killed during a multipart upload leaves its parts behind. No listing of objects shows them
and S3 bills them until the upload is aborted. The bucket's lifecycle rule does that; this does it sooner, and
for stores without such rules. obstore cannot list uploads, boto3 can.

An upload is never part of a log, so its age alone decides: aborting one that is still written costs its
writer a retry under a new key, never data, since no manifest is written before its objects are whole. Age is
measured by the store's own clock, the `Date` of its answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from service.remote.format.keys import DATA_PREFIX, parse_key
from service.remote.stores.boto3_client import NoSuchUpload, translated
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.s3_address import S3Address


class UnfinishedUpload(NamedTuple):
    """`key` is relative to the prefix, `age_ms` by the store's clock; only the store interprets
    `upload_id`."""

    key: str
    upload_id: str
    age_ms: int


class UnfinishedUploads:
    """Unfinished multipart uploads below one prefix. Calls block."""

    def __init__(self, client: Any, address: S3Address) -> None:
        """`client` is boto3's for S3."""
        self._client = client
        self._bucket = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""

    def older_than(self, age_ms: int, *, page_size: int = 1_000) -> Iterator[UnfinishedUpload]:
        """Yield the uploads under keys of this layout that were begun at least `age_ms` ago.

        Those that were yielded may be aborted meanwhile. Raises `StoreUnavailable` or `StoreRefused`.
        """
        for below in (DATA_PREFIX, PROBE_PREFIX):
            for page in self._pages(f"{self._prefix}{below}/", page_size):
                now = _store_time(page)
                for upload in page.get("Uploads", ()):
                    key = str(upload["Key"]).removeprefix(self._prefix)
                    # Stores give "now" in whole seconds, and some give "begun" in fractions.
                    age = max(0, int((now - upload["Initiated"]).total_seconds() * 1000))
                    if age >= age_ms and (below == PROBE_PREFIX or parse_key(key) is not None):
                        yield UnfinishedUpload(key, str(upload["UploadId"]), age)

    def _pages(self, prefix: str, page_size: int) -> Iterator[Any]:
        """Yield pages by key marker, not by upload marker: S3 Express has none, and versitygw refuses its
        own.

        Two uploads of one key are rare (a repeated request to begin one); if a page ends between them, the
        next run finds the second.
        """
        place = {"Bucket": self._bucket, "Prefix": prefix}
        while True:
            with translated("unfinished uploads"):
                page = self._client.list_multipart_uploads(**place, MaxUploads=page_size)
            yield page
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return
            place["KeyMarker"] = page["NextKeyMarker"]

    def abort(self, upload: UnfinishedUpload) -> bool:
        """Abort `upload`; return whether it still existed. Raises as `older_than` does.

        Parts still in flight to the store may arrive after it; the next run finds them.
        """
        try:
            with translated(upload.key):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._prefix + upload.key, UploadId=upload.upload_id
                )
        except NoSuchUpload:
            return False  # finished or aborted since it was listed
        return True


def _store_time(page: Any) -> datetime:
    """Return the time of the store's answer by its own clock; by ours where it does not tell."""
    date = page["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(date).astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(time.time(), UTC)
