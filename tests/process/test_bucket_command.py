"""`firn bucket` on real servers: what a store can do, which permission is missing, buckets as recommended."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from service.inspect.bucket_policy import least_policy, reader_policy
from tests.conftest import BRISK
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.processes import FIRN, Node, wait_until
from tests.support.stores import ACCESS, CREDENTIALS, SECRET, Store, moto_server, s3_client

REGION = "us-east-1"


def firn(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [str(FIRN), *arguments],
        capture_output=True,
        text=True,
        env={**inherited, **CREDENTIALS, **(env or {})},
        check=False,
    )


def check(url: str, endpoint: str | None, env: Mapping[str, str] | None = None) -> tuple[int, Any]:
    where = ["--endpoint", endpoint] if endpoint else []
    done = firn("bucket", "check", url, "--json", *where, env=env)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def outcomes(document: Any) -> dict[str, str]:
    return {step["what"]: step["outcome"] for step in document["steps"]}


class TestStoresThatWillDo:
    """And nothing is left behind in them."""

    def test_moto(self, moto_store: Store) -> None:
        set_rules(moto_store, ENDS_UPLOADS)
        self.will_do(moto_store)

    @pytest.mark.versitygw
    def test_versitygw(self, versitygw_store: Store) -> None:
        self.will_do(versitygw_store)

    def test_a_folder(self, disk_store: Store) -> None:
        self.will_do(disk_store)

    @staticmethod
    def will_do(store: Store) -> None:
        code, document = check(store.url, store.endpoint)
        assert code == 0, document
        assert document["fit"]
        assert document["missing"] == []
        assert "failed" not in outcomes(document).values()
        assert set(store.objects()) <= {".firn-lock"}


ENDS_UPLOADS = {
    "ID": "uploads",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
}
UPLOAD_RULE = "lifecycle rule for unfinished uploads"


def set_rules(store: Store, *rules: dict[str, Any]) -> None:
    bucket = store.url.removeprefix("s3://").partition("/")[0]
    s3_client(store.endpoint or "").put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)}
    )


def reasons(document: Any) -> dict[str, str]:
    return {step["what"]: step["why"] for step in document["steps"]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with moto_server(tmp_path_factory.mktemp("guarded")) as endpoint:
        yield Guarded(endpoint, TestPermissions.BUCKET)


class TestPermissions:
    """moto judges requests by the policy of the user whose key they are signed with."""

    BUCKET, PREFIX = "guarded", "some/prefix"
    URL = f"s3://{BUCKET}/{PREFIX}"

    def test_the_least_policy_is_enough(self, guarded: Guarded) -> None:
        guarded.permit(least_policy(self.BUCKET, self.PREFIX))
        code, document = check(self.URL, guarded.endpoint, guarded.env)
        assert code == 0, document
        assert document["fit"]
        # What it does not allow, a node does without.
        assert outcomes(document)["find unfinished uploads"] == "left out"
        assert reasons(document)["find unfinished uploads"] == (
            "s3:ListBucketMultipartUploads is missing: `firn sweep` cannot abort uploads; a node does without"
        )
        assert "needs s3:GetLifecycleConfiguration; a node does not" in reasons(document)["lifecycle"]
        assert reasons(document)[UPLOAD_RULE].startswith("unknown. ")

    @pytest.mark.parametrize(
        "action",
        [action for one in least_policy("b", "p")["Statement"] for action in one["Action"]],
    )
    def test_each_of_its_permissions_is_needed_and_named(self, guarded: Guarded, action: str) -> None:
        policy = least_policy(self.BUCKET, self.PREFIX)
        for statement in policy["Statement"]:
            statement["Action"] = [one for one in statement["Action"] if one != action]
        policy["Statement"] = [one for one in policy["Statement"] if one["Action"]]
        guarded.permit(policy)
        code, document = check(self.URL, guarded.endpoint, guarded.env)
        assert code == 1
        assert document["missing"] == [action]
        done = firn("bucket", "check", self.URL, "--endpoint", guarded.endpoint, env=guarded.env)
        assert done.returncode == 1
        assert f"missing: {action}. The least policy of a node in this bucket:" in done.stdout
        assert "Traceback" not in done.stderr
        printed = done.stdout.partition("bucket:\n")[2].rpartition("the store is not fit")[0]
        assert json.loads(printed) == least_policy(self.BUCKET, self.PREFIX)

    def test_bucket_create_without_permission_is_reported(self, guarded: Guarded) -> None:
        guarded.permit(least_policy(self.BUCKET, self.PREFIX))
        done = firn("bucket", "create", "s3://another", "--endpoint", guarded.endpoint, env=guarded.env)
        assert done.returncode == 1
        assert "made:" not in done.stdout
        assert done.stderr.startswith("firn bucket: s3://another: ")
        assert "Traceback" not in done.stderr


def test_listings_stay_within_the_least_policy(moto_store: Store, tmp_path: Path) -> None:
    """AWS judges listings by `s3:prefix`, and moto does not; of a command's and of a node's."""
    bucket, _, prefix = moto_store.url.removeprefix("s3://").partition("/")
    (listing,) = (one for one in least_policy(bucket, prefix)["Statement"] if one["Sid"] == "ListPrefix")
    (pattern,) = listing["Condition"]["StringLike"]["s3:prefix"]
    with fault_proxy(moto_store.endpoint or "") as proxy:
        check(moto_store.url, proxy.endpoint)
        checked = len(listed(proxy))
        store = moto_store.through(proxy.endpoint)
        node = Node(tmp_path, {**BRISK, **store.node_settings}, store.env)
        try:
            node.start()
            wait_until("the node to list", lambda: len(listed(proxy)) > checked)
        finally:
            node.close()
        asked = listed(proxy)
    assert checked > 0
    assert [one for one in asked if not fnmatch.fnmatchcase(one, pattern)] == []


def test_a_bucket_that_demands_encryption_is_fit_with_it_and_a_node_writes_there(
    moto_store: Store, tmp_path: Path
) -> None:
    set_rules(moto_store, ENDS_UPLOADS)
    bare: list[Seen] = []

    def demand(seen: Seen) -> Fault:
        query = urlsplit(seen.path).query
        writes = (seen.method == "PUT" and "partNumber" not in query) or query in ("uploads", "uploads=")
        if not writes or seen.headers.get("x-amz-server-side-encryption") == "AES256":
            return Fault.PASS
        bare.append(seen)
        return Fault.DENIED

    with fault_proxy(moto_store.endpoint or "") as proxy:
        proxy.plan = demand
        code, document = check(moto_store.url, proxy.endpoint)
        assert (code, document["missing"]) == (1, ["s3:PutObject"])
        done = firn("bucket", "check", moto_store.url, "--endpoint", proxy.endpoint, "--sse", "AES256")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the store is fit"), done.stdout
        bare.clear()
        store = moto_store.through(proxy.endpoint)
        settings = {**BRISK, **store.node_settings, "firn.remote.s3.sse": "AES256"}
        node = Node(tmp_path, settings, store.env)
        try:
            node.start()
            wait_until("the node to claim the prefix", lambda: "cluster.json" in moto_store.objects())
        finally:
            node.close()
        assert bare == []
    done = firn("repair", moto_store.url, "--sse-kms-key-id", "alias/firn")
    assert done.returncode == 1
    assert "a key of KMS goes with the algorithm aws:kms" in done.stderr


def listed(proxy: FaultProxy) -> list[str]:
    """The prefixes of all listings that passed."""
    queries = [parse_qs(urlsplit(seen.path).query) for seen in proxy.seen if seen.method == "GET"]
    return [query.get("prefix", [""])[0] for query in queries if query.get("list-type") == ["2"]]


class Guarded:
    """A moto whose one user, beside the administrator, may do what `permit` says."""

    def __init__(self, endpoint: str, bucket: str) -> None:
        import boto3

        self.endpoint = endpoint
        self._bucket = bucket
        iam = boto3.client(
            "iam",
            endpoint_url=endpoint,
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            region_name=REGION,
        )
        s3_client(endpoint).create_bucket(Bucket=bucket)
        keys = {}
        for user in ("admin", "node"):
            iam.create_user(UserName=user)
            keys[user] = iam.create_access_key(UserName=user)["AccessKey"]
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
        iam.put_user_policy(UserName="admin", PolicyName="p", PolicyDocument=document)
        self._iam: Any = boto3.client(
            "iam",
            endpoint_url=endpoint,
            aws_access_key_id=keys["admin"]["AccessKeyId"],
            aws_secret_access_key=keys["admin"]["SecretAccessKey"],
            region_name=REGION,
        )
        self.env = {
            "AWS_ACCESS_KEY_ID": keys["node"]["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": keys["node"]["SecretAccessKey"],
        }
        request = urllib.request.Request(
            f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request).close()  # from now on every request needs a permission

    def permit(self, policy: dict[str, Any]) -> None:
        # moto knows no `s3:prefix`, and judges a delete of many objects by the bucket's name alone.
        statements = []
        for one in policy["Statement"]:
            kept = {name: value for name, value in one.items() if name != "Condition"}
            statements.append({**kept, "Resource": [*one["Resource"], f"arn:aws:s3:::{self._bucket}"]})
        document = json.dumps({**policy, "Statement": statements})
        self._iam.put_user_policy(UserName="node", PolicyName="p", PolicyDocument=document)


class TestStoresThatWillNotDo:
    def test_no_such_bucket(self, moto_endpoint: str) -> None:
        done = firn("bucket", "check", "s3://nowhere-to-be-found", "--endpoint", moto_endpoint)
        assert done.returncode == 1
        assert "there is no such bucket" in done.stdout
        assert "missing:" not in done.stdout

    def test_an_unreachable_store_fails_the_check(self) -> None:
        code, document = check("s3://bucket", "http://127.0.0.1:1")
        assert code == 1
        assert [step["outcome"] for step in document["steps"]][:1] == ["failed"]

    def test_a_key_that_the_store_does_not_know(self, moto_store: Store) -> None:
        with fault_proxy(moto_store.endpoint or "") as proxy:
            proxy.mode = Fault.UNKNOWN_KEY
            code, document = check(moto_store.url, proxy.endpoint)
        assert code == 1
        assert document["missing"] == []
        assert "does not know this access key" in document["steps"][0]["why"]

    @pytest.mark.parametrize("url", ["s3://", "http://bucket", "s3://key:secret@bucket"])
    def test_an_invalid_store_url_is_refused(self, url: str) -> None:
        done = firn("bucket", "check", url)
        assert done.returncode == 1
        assert done.stderr.startswith("firn bucket: ")
        assert "Traceback" not in done.stderr


class TestMaking:
    def test_a_bucket_as_recommended(self, moto_endpoint: str) -> None:
        url = f"s3://made-{os.getpid()}/prefix"
        done = firn("bucket", "create", url, "--endpoint", moto_endpoint)
        assert done.returncode == 0, done.stderr
        code, document = check(url, moto_endpoint)
        assert code == 0, document
        settings = ("versioning", "encryption", "lifecycle", UPLOAD_RULE, "public access")
        assert [outcomes(document)[what] for what in settings] == ["ok"] * 5

    def test_an_existing_bucket_is_not_changed(self, moto_store: Store) -> None:
        client = s3_client(moto_store.endpoint or "")
        bucket = moto_store.url.removeprefix("s3://").partition("/")[0]
        done = firn("bucket", "create", moto_store.url, "--endpoint", moto_store.endpoint or "")
        assert done.returncode == 1
        assert "existing buckets are not changed" in done.stderr
        assert "Status" not in client.get_bucket_versioning(Bucket=bucket)

    def test_advice_on_a_bare_bucket(self, moto_store: Store) -> None:
        _, document = check(moto_store.url, moto_store.endpoint)
        assert outcomes(document)["versioning"] == "advice"

    def test_a_rule_that_ends_unfinished_uploads_is_demanded(self, moto_store: Store) -> None:
        code, document = check(moto_store.url, moto_store.endpoint)
        assert code == 1
        assert document["missing"] == []
        assert [what for what, outcome in outcomes(document).items() if outcome == "failed"] == [UPLOAD_RULE]
        assert (
            "no rule with AbortIncompleteMultipartUpload covers the prefix" in reasons(document)[UPLOAD_RULE]
        )
        set_rules(moto_store, {**ENDS_UPLOADS, "Filter": {"Prefix": "elsewhere/"}})
        assert check(moto_store.url, moto_store.endpoint)[0] == 1
        prefix = moto_store.url.removeprefix("s3://").partition("/")[2]
        set_rules(moto_store, {**ENDS_UPLOADS, "Filter": {"Prefix": prefix}})
        code, document = check(moto_store.url, moto_store.endpoint)
        assert code == 0, document
        assert outcomes(document)[UPLOAD_RULE] == "ok"

    def test_a_rule_that_deletes_by_age_is_warned_of(self, moto_store: Store) -> None:
        rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}
        set_rules(moto_store, rule)
        _, document = check(moto_store.url, moto_store.endpoint)
        assert "'old' deletes objects by age" in reasons(document)["lifecycle"]

    def test_a_rule_that_puts_objects_out_of_reach_is_warned_of(self, moto_store: Store) -> None:
        moves = [{"Days": 30, "StorageClass": "GLACIER_IR"}, {"Days": 90, "StorageClass": "DEEP_ARCHIVE"}]
        rule = {"ID": "cheap", "Status": "Enabled", "Filter": {"Prefix": ""}, "Transitions": moves}
        set_rules(moto_store, rule)
        _, document = check(moto_store.url, moto_store.endpoint)
        assert (
            "'cheap' moves objects to DEEP_ARCHIVE, where they cannot be read"
            in reasons(document)["lifecycle"]
        )

    @pytest.mark.versitygw
    def test_settings_that_a_store_lacks_are_said_and_the_bucket_will_do(
        self, versitygw_endpoint: str
    ) -> None:
        url = f"s3://made-{os.getpid()}"
        done = firn("bucket", "create", url, "--endpoint", versitygw_endpoint)
        assert "Traceback" not in done.stderr
        assert "created: the bucket" in done.stdout
        code, document = check(url, versitygw_endpoint)
        assert code == 0
        assert outcomes(document)[UPLOAD_RULE] == "left out"
        assert reasons(document)[UPLOAD_RULE].startswith("unknown. ")

    def test_a_folder_needs_no_making(self, tmp_path: Path) -> None:
        done = firn("bucket", "create", tmp_path.as_uri())
        assert done.returncode == 1
        assert "only buckets of S3" in done.stderr


def test_the_policy_is_printed_without_asking_anybody() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    done = firn("bucket", "policy", "s3://bucket/prefix", "--kms-key", key)
    assert json.loads(done.stdout) == least_policy("bucket", "prefix", kms_key=key)
    assert firn("bucket", "policy", "s3://bucket", "--kms-key", "nonsense").returncode == 1
    done = firn("bucket", "policy", "s3://bucket/prefix", "--reader", "--kms-key", key)
    assert json.loads(done.stdout) == reader_policy("bucket", "prefix", kms_key=key)
