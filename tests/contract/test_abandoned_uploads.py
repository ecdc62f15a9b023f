"""Unfinished multipart uploads over real S3 servers: what is abandoned goes, everything else stays."""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import StorageError
from service.node.multipart_cleanup import UploadsChild
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.stores.abandoned_uploads import UnfinishedUpload, Uploads
from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.remote.stores.s3_address import s3_address
from tests.contract.backends import PART_BYTES, REGION
from tests.support.stores import CREDENTIALS, s3_client

HOUR_MS = 3_600_000
TOPIC = uuid.UUID(int=7)
_numbers = itertools.count()
VERSITYGW = pytest.param("versitygw", marks=pytest.mark.versitygw)
LOCALSTACK = ["localstack"] if "FIRN_LOCALSTACK" in os.environ else []
# moto says of every upload that it was begun in 2010.
THAT_TELL_THE_TIME = [VERSITYGW, *LOCALSTACK]


class Bucket:
    """A bucket on one of the servers, with a prefix in it that is under test."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client = s3_client(endpoint)
        self.name = f"uploads-{uuid.uuid4()}"
        self.client.create_bucket(Bucket=self.name)
        self.url = f"s3://{self.name}/some/prefix"
        self.uploads = self.below(self.url)

    def below(self, url: str) -> Uploads:
        return Uploads(self.client, s3_address(url, self.endpoint, REGION, {}))

    def begin(self, key: str, parts: int = 1) -> str:
        """Begin an upload of `key`, whole as it is in the bucket, upload some parts, and forget about it."""
        begun = self.client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"]
        for number in range(1, parts + 1):
            self.client.upload_part(
                Bucket=self.name, Key=key, UploadId=begun, PartNumber=number, Body=b"x" * PART_BYTES
            )
        return str(begun)

    def unfinished(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return sorted(upload["Key"] for upload in found)


def segment(base: int = 0) -> str:
    """A key of ours, relative to the prefix."""
    return segment_key(SegmentKey(TOPIC, 0, base, base + 9, 3, uuid.UUID(int=next(_numbers))))


def keys(uploads: Sequence[UnfinishedUpload]) -> list[str]:
    return [upload.key for upload in uploads]


@pytest.fixture(params=["moto", VERSITYGW, *LOCALSTACK])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(request.getfixturevalue(f"{request.param}_contract_endpoint"))


@pytest.fixture(params=THAT_TELL_THE_TIME)
def punctual(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(request.getfixturevalue(f"{request.param}_contract_endpoint"))


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, where a child process finds them."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def test_an_abandoned_upload_is_found_and_aborted(bucket: Bucket) -> None:
    abandoned = segment()
    bucket.begin(f"some/prefix/{abandoned}", parts=2)
    found = bucket.uploads.older_than(0)
    assert keys(found) == [abandoned]
    assert bucket.uploads.abort(found) == 1
    assert bucket.unfinished() == []
    assert bucket.uploads.older_than(0) == []
    assert "Contents" not in bucket.client.list_objects_v2(Bucket=bucket.name)


def test_a_young_upload_is_left_alone_and_can_be_finished(punctual: Bucket) -> None:
    key = f"some/prefix/{segment()}"
    begun = punctual.begin(key)
    assert punctual.uploads.older_than(HOUR_MS) == []
    (old,) = punctual.uploads.older_than(0)
    assert 0 <= old.age_ms < HOUR_MS
    part = punctual.client.list_parts(Bucket=punctual.name, Key=key, UploadId=begun)["Parts"][0]
    punctual.client.complete_multipart_upload(
        Bucket=punctual.name,
        Key=key,
        UploadId=begun,
        MultipartUpload={"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]},
    )
    # It was finished after it was listed: nothing to abort, and nothing is lost.
    assert punctual.uploads.abort([old]) == 0
    assert punctual.client.head_object(Bucket=punctual.name, Key=key)["ContentLength"] == PART_BYTES


def test_keys_of_others_are_left_alone(bucket: Bucket) -> None:
    ours = segment()
    foreign = sorted(
        [
            ours,  # outside the prefix
            f"some/prefix2/{ours}",
            f"some/prefix/{ours}.bak",
            f"some/prefix/data/{TOPIC}/0/notes.txt",
            "some/prefix/other.bin",
        ]
    )
    for key in [*foreign, f"some/prefix/{ours}"]:
        bucket.begin(key, parts=0)
    found = bucket.uploads.older_than(0)
    assert keys(found) == [ours]
    assert bucket.uploads.abort(found) == 1
    assert bucket.unfinished() == foreign


def test_a_prefix_may_be_the_whole_bucket(bucket: Bucket) -> None:
    ours = segment()
    bucket.begin(ours, parts=0)
    uploads = bucket.below(f"s3://{bucket.name}")
    assert uploads.abort(uploads.older_than(0)) == 1
    assert bucket.unfinished() == []


def test_there_may_be_more_than_one_page_of_them(bucket: Bucket) -> None:
    begun = sorted(segment(base) for base in range(0, 50, 10))
    for key in begun:
        bucket.begin(f"some/prefix/{key}", parts=0)
    assert sorted(keys(bucket.uploads.older_than(0, page_size=2))) == begun
    assert bucket.uploads.abort(bucket.uploads.older_than(0, page_size=2)) == 5
    assert bucket.unfinished() == []


def test_a_run_lists_a_bounded_number_of_pages(punctual: Bucket) -> None:
    for base in range(0, 50, 10):
        punctual.begin(f"some/prefix/{segment(base)}", parts=0)
    assert len(punctual.uploads.older_than(0, page_size=2, max_pages=2)) == 4


def test_store_errors_are_told_as_refusal_or_outage(bucket: Bucket) -> None:
    with pytest.raises(StoreRefused, match="NoSuchBucket"):
        bucket.below("s3://no-such-bucket-here/p").older_than(0)
    nobody = "http://127.0.0.1:9"
    with pytest.raises(StoreUnavailable):
        Uploads(s3_client(nobody, attempts=1), s3_address(bucket.url, nobody, REGION, {})).older_than(0)


def run(
    child: UploadsChild, choose: Callable[[Sequence[str]], Collection[str]], older_than_ms: int = 0
) -> int:
    async def chosen(keys: Sequence[str]) -> Collection[str]:
        return choose(keys)

    return asyncio.run(child(older_than_ms, chosen))


@pytest.mark.usefixtures("credentials")
def test_the_child_aborts_what_its_parent_chooses_and_nothing_else(bucket: Bucket) -> None:
    running, abandoned = segment(0), segment(10)
    for key in (running, abandoned):
        bucket.begin(f"some/prefix/{key}")
    child = UploadsChild(bucket.url, bucket.endpoint, REGION)
    offered: list[str] = []

    def choose(keys: Sequence[str]) -> list[str]:
        offered.extend(keys)
        return [abandoned, "data/never/offered.seg"]

    assert run(child, choose) == 1
    assert sorted(offered) == sorted([running, abandoned])
    assert bucket.unfinished() == [f"some/prefix/{running}"]
    assert run(child, lambda keys: []) == 0
    assert bucket.unfinished() == [f"some/prefix/{running}"]


@pytest.mark.usefixtures("credentials")
def test_the_child_offers_no_young_upload(punctual: Bucket) -> None:
    punctual.begin(f"some/prefix/{segment()}")
    child = UploadsChild(punctual.url, punctual.endpoint, REGION)
    assert run(child, lambda keys: keys, HOUR_MS) == 0
    assert run(child, lambda keys: keys) == 1


def test_the_child_reads_the_shared_files_as_the_store_does(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    (tmp_path / "keys").write_text(
        f"[work]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
    )
    # What open_store does not read must not lead the child elsewhere either.
    (tmp_path / "config").write_text(
        f"[profile work]\nregion = {REGION}\nendpoint_url = http://127.0.0.1:9\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    bucket.begin(f"some/prefix/{segment()}")
    assert run(UploadsChild(bucket.url, None, None), lambda keys: keys) == 1


@pytest.mark.versitygw
def test_wrong_credentials_are_said_in_one_line(
    versitygw_contract_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ: dict[str, Any] = {**CREDENTIALS, "AWS_SECRET_ACCESS_KEY": "wrong"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(versitygw_contract_endpoint)
    with pytest.raises(StorageError, match="SignatureDoesNotMatch") as e:
        run(UploadsChild(bucket.url, bucket.endpoint, REGION), lambda keys: keys)
    assert "wrong" not in str(e.value)
    assert "\n" not in str(e.value)
