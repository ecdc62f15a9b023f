"""Abort abandoned multipart uploads: `python -m service.remote.stores.abandoned_uploads URL`.

A process that is killed during a multipart upload leaves its parts behind. No listing of objects shows them,
S3 keeps and bills them for ever, and obstore cannot list them; boto3 can. boto3 holds the GIL for long and
stays in memory, so a broker runs this as a child process, and nothing here imports boto3 before `main` runs.

The child lists, its parent decides. They exchange lines of JSON:

1. the child prints ``{"keys": […]}``: the keys (relative to the prefix) of unfinished uploads that are of
  this layout and were begun at least `--older-than-ms` ago
2. the parent writes ``{"dead": […]}``, those to abort; no answer (the parent has ended) means none
3. the child aborts them and prints ``{"aborted": n}``

The order makes it safe without a clock: the parent knows each of its uploads before it begins, and decides
after the listing. So for uploads of other processes age suffices. One that is older than the grace, which no
upload may exceed, and whose key's leader epoch is not above the parent's, can no longer be committed;
aborting one that is still written costs its writer a retry under a new key, never data. Age is measured by
the store's own clock, the `Date` of its answer.

Endpoint, region and credentials are those of `open_store`; credentials come through the environment, never
through arguments. Exit code 1 and one line on stderr when the store does not support it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from service.base.errors import FirnError
from service.remote.format.keys import DATA_PREFIX, parse_key
from service.remote.stores.s3_address import S3Address
from service.remote.stores.s3_client import NoSuchUpload, s3_client, translated

TIME_LIMIT_S: Final = 300
"""The child ends itself after this time, even if its parent has ended."""
MAX_PAGES: Final = 100
"""Pages of 1,000 uploads listed in one run; later pages are reached once these uploads are gone."""
MAX_ABORTS: Final = 1_000
"""Uploads proposed in one run; the next run finds the others."""
MAX_LINE_BYTES: Final = 1 << 20
"""Longer than any line: keys of this layout have fewer than 200 characters."""


class UnfinishedUpload(NamedTuple):
    """`key` is relative to the prefix, `age_ms` by the store's clock; only the store interprets
    `upload_id`."""

    key: str
    upload_id: str
    age_ms: int


class Uploads:
    """Unfinished multipart uploads below one prefix. Calls block."""

    def __init__(self, client: Any, address: S3Address) -> None:
        """`client` is boto3's for S3."""
        self._client = client
        self._bucket = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""

    def older_than(
        self, age_ms: int, *, page_size: int = 1_000, max_pages: int = MAX_PAGES
    ) -> list[UnfinishedUpload]:
        """Return uploads under keys of this layout that were begun at least `age_ms` ago, at most
        `MAX_ABORTS`.

        Raises `StoreUnavailable` or `StoreRefused`.
        """
        return list(islice(self._old(age_ms, page_size, max_pages), MAX_ABORTS))

    def _old(self, age_ms: int, page_size: int, max_pages: int) -> Iterator[UnfinishedUpload]:
        for page in islice(self._pages(page_size), max_pages):
            now = _store_time(page)
            for upload in page.get("Uploads", ()):
                key = str(upload["Key"]).removeprefix(self._prefix)
                # Stores give "now" in whole seconds, and some give "begun" in fractions.
                age = max(0, int((now - upload["Initiated"]).total_seconds() * 1000))
                if age >= age_ms and parse_key(key) is not None:
                    yield UnfinishedUpload(key, str(upload["UploadId"]), age)

    def _pages(self, page_size: int) -> Iterator[Any]:
        """Yield pages by key marker, not by upload marker: S3 Express has none, and versitygw refuses its
        own.

        Two uploads of one key are rare (a repeated request to begin one); if a page ends between them, the
        next run finds the second.
        """
        place = {"Bucket": self._bucket, "Prefix": f"{self._prefix}{DATA_PREFIX}/"}
        while True:
            with translated("unfinished uploads"):
                page = self._client.list_multipart_uploads(**place, MaxUploads=page_size)
            yield page
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return
            place["KeyMarker"] = page["NextKeyMarker"]

    def abort(self, uploads: Iterable[UnfinishedUpload]) -> int:
        """Abort `uploads`; return how many still existed. Raises as `older_than` does, at the first failure.

        Parts still in flight to the store may arrive after it; the next run finds them.
        """
        return sum(self._abort(upload) for upload in uploads)

    def _abort(self, upload: UnfinishedUpload) -> bool:
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


def open_uploads(url: str, endpoint: str | None, region: str | None) -> Uploads:
    """Open the uploads of what `open_store` opens with the same arguments.

    Changes the environment as `s3_client` does.
    """
    return Uploads(*s3_client(url, endpoint, region, os.environ))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the child's side of the exchange; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.remote.stores.abandoned_uploads")
    parser.add_argument("url", metavar="s3://BUCKET/PREFIX")
    parser.add_argument("--endpoint")
    parser.add_argument("--region")
    parser.add_argument("--older-than-ms", type=int, required=True)
    options = parser.parse_args(arguments)
    signal.alarm(TIME_LIMIT_S)
    try:
        uploads = open_uploads(options.url, options.endpoint, options.region)
        found = uploads.older_than(options.older_than_ms)
        print(json.dumps({"keys": [upload.key for upload in found]}), flush=True)
        answer = sys.stdin.readline()
        dead = frozenset(json.loads(answer)["dead"] if answer else ())
        aborted = uploads.abort(upload for upload in found if upload.key in dead)
        print(json.dumps({"aborted": aborted}), flush=True)
    except FirnError as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
