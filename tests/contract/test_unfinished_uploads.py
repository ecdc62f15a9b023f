"""Unfinished multipart uploads over real S3 servers, and `firn sweep`: old ones go, everything else stays."""

from __future__ import annotations

import itertools
import os
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest

from service.inspect.unfinished_uploads import UnfinishedUpload, UnfinishedUploads
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.remote.stores.s3_address import s3_address
from tests.contract.backends import PART_BYTES, REGION
from tests.support.faults import Fault, fault_proxy
from tests.support.processes import FIRN
from tests.support.stores import CREDENTIALS, s3_client
from tests.unit.inspect.archives import copy_metadata
from tests.unit.tiering.world import World

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

    def below(self, url: str) -> UnfinishedUploads:
        return UnfinishedUploads(self.client, s3_address(url, self.endpoint, REGION, {}))

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


def keys(uploads: Iterable[UnfinishedUpload]) -> list[str]:
    return sorted(upload.key for upload in uploads)


def abort_all(uploads: UnfinishedUploads, **options: int) -> int:
    """How many uploads were aborted, of every age."""
    return sum(uploads.abort(upload) for upload in uploads.older_than(0, **options))


@pytest.fixture(params=["moto", VERSITYGW, *LOCALSTACK])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(request.getfixturevalue(f"{request.param}_contract_endpoint"))


@pytest.fixture(params=THAT_TELL_THE_TIME)
def punctual(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(request.getfixturevalue(f"{request.param}_contract_endpoint"))


def test_an_abandoned_upload_is_found_and_aborted(bucket: Bucket) -> None:
    abandoned = segment()
    bucket.begin(f"some/prefix/{abandoned}", parts=2)
    assert keys(bucket.uploads.older_than(0)) == [abandoned]
    assert abort_all(bucket.uploads) == 1
    assert bucket.unfinished() == []
    assert keys(bucket.uploads.older_than(0)) == []
    assert "Contents" not in bucket.client.list_objects_v2(Bucket=bucket.name)


def test_a_young_upload_is_left_alone_and_can_be_finished(punctual: Bucket) -> None:
    key = f"some/prefix/{segment()}"
    begun = punctual.begin(key)
    assert keys(punctual.uploads.older_than(HOUR_MS)) == []
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
    assert not punctual.uploads.abort(old)
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
    assert keys(bucket.uploads.older_than(0)) == [ours]
    assert abort_all(bucket.uploads) == 1
    assert bucket.unfinished() == foreign


def test_a_probe_that_a_check_left_is_aborted(bucket: Bucket) -> None:
    bucket.begin("some/prefix/probe/1234/unfinished", parts=0)
    assert abort_all(bucket.uploads) == 1
    assert bucket.unfinished() == []


def test_a_prefix_may_be_the_whole_bucket(bucket: Bucket) -> None:
    ours = segment()
    bucket.begin(ours, parts=0)
    assert abort_all(bucket.below(f"s3://{bucket.name}")) == 1
    assert bucket.unfinished() == []


def test_there_may_be_more_than_one_page_of_them(bucket: Bucket) -> None:
    begun = sorted(segment(base) for base in range(0, 50, 10))
    for key in begun:
        bucket.begin(f"some/prefix/{key}", parts=0)
    assert keys(bucket.uploads.older_than(0, page_size=2)) == begun
    assert abort_all(bucket.uploads, page_size=2) == 5
    assert bucket.unfinished() == []


def test_store_errors_are_refusals_or_outages(bucket: Bucket) -> None:
    with pytest.raises(StoreRefused, match="NoSuchBucket"):
        keys(bucket.below("s3://no-such-bucket-here/p").older_than(0))
    nobody = "http://127.0.0.1:9"
    uploads = UnfinishedUploads(s3_client(nobody, attempts=1), s3_address(bucket.url, nobody, REGION, {}))
    with pytest.raises(StoreUnavailable):
        keys(uploads.older_than(0))


def sweep(bucket: Bucket, *arguments: str, endpoint: str | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    where = ["--endpoint", endpoint or bucket.endpoint, "--region", REGION]
    return subprocess.run(
        [str(FIRN), "sweep", bucket.url, *where, *arguments],
        capture_output=True,
        text=True,
        env={**inherited, **CREDENTIALS},
        check=False,
    )


def with_archive(bucket: Bucket, tmp_path: Path) -> Bucket:
    """With the archive of a node in it, which has ended."""
    world = World(tmp_path)
    world.fill(2)
    world.run()
    copy_metadata(world)
    for key in world.stored_keys():
        data = world.bucket.get(key, max_size=1 << 20)
        bucket.client.put_object(Bucket=bucket.name, Key=f"some/prefix/{key}", Body=data)
    return bucket


@pytest.fixture
def archive(bucket: Bucket, tmp_path: Path) -> Bucket:
    return with_archive(bucket, tmp_path)


def test_a_sweep_lists_unfinished_uploads_and_aborts_them_on_request(archive: Bucket) -> None:
    abandoned = segment()
    archive.begin(f"some/prefix/{abandoned}")
    archive.begin("some/prefix/other.bin", parts=0)
    listed = sweep(archive, "--older-than-hours", "0")
    assert listed.returncode == 0, listed.stderr
    assert f"unfinished upload: {abandoned} (" in listed.stdout
    assert listed.stdout.endswith("1 unfinished uploads, none aborted (--delete)\n")
    assert len(archive.unfinished()) == 2
    deleted = sweep(archive, "--older-than-hours", "0", "--delete")
    assert deleted.returncode == 0, deleted.stderr
    assert deleted.stdout.endswith("1 unfinished uploads, 1 aborted\n")
    assert archive.unfinished() == ["some/prefix/other.bin"]


def test_a_sweep_keeps_young_uploads(punctual: Bucket, tmp_path: Path) -> None:
    with_archive(punctual, tmp_path)
    punctual.begin(f"some/prefix/{segment()}", parts=0)
    done = sweep(punctual, "--delete")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("0 unfinished uploads, 0 aborted\n")
    assert len(punctual.unfinished()) == 1


def test_a_sweep_of_one_topic_leaves_uploads_alone(archive: Bucket) -> None:
    archive.begin(f"some/prefix/{segment()}", parts=0)
    done = sweep(archive, "--older-than-hours", "0", "--delete", "--topic", str(uuid.uuid4()))
    assert done.returncode == 0, done.stderr
    assert "unfinished" not in done.stdout
    assert len(archive.unfinished()) == 1


def test_a_sweep_says_that_a_store_does_not_list_uploads(archive: Bucket) -> None:
    archive.begin(f"some/prefix/{segment()}", parts=0)
    with fault_proxy(archive.endpoint) as proxy:
        proxy.plan = lambda seen: Fault.DENIED if "?uploads" in seen.path else Fault.PASS
        done = sweep(archive, "--older-than-hours", "0", "--delete", endpoint=proxy.endpoint)
    assert done.returncode == 0, done.stderr
    assert "skipped: unfinished uploads: the store does not list them: " in done.stdout
    assert "AccessDenied" in done.stdout


def test_a_sweep_says_which_upload_the_store_keeps(archive: Bucket) -> None:
    kept = segment()
    archive.begin(f"some/prefix/{kept}", parts=0)
    with fault_proxy(archive.endpoint) as proxy:
        proxy.plan = lambda seen: Fault.DENIED if seen.method == "DELETE" else Fault.PASS
        done = sweep(archive, "--older-than-hours", "0", "--delete", endpoint=proxy.endpoint)
    assert done.returncode == 1
    assert f"not aborted: {kept}: " in done.stdout
    assert done.stdout.endswith("1 unfinished uploads, 0 aborted\n")
    assert len(archive.unfinished()) == 1
