"""kill -9 in the middle of a multipart upload: nothing is lost, and `firn sweep` aborts the upload."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from tests.conftest import NodeFactory
from tests.support.clients import Admin, Confluent, digest, make_rows
from tests.support.faults import Fault, Seen, fault_proxy
from tests.support.fsck import fsck
from tests.support.processes import FIRN, wait_until
from tests.support.stores import Store, s3_client

MIB = 1 << 20
TIERED = {"remote_storage_enable": "true", "segment_bytes": str(20 * MIB), "local_retention_bytes": "1"}
ROWS = 5_000
VALUE_BYTES = 5_000


def unfinished(store: Store) -> list[str]:
    bucket = store.url.removeprefix("s3://").partition("/")[0]
    uploads = s3_client(store.endpoint or "").list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [upload["Key"] for upload in uploads]


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("moto", marks=pytest.mark.thorough),
        pytest.param("versitygw", marks=pytest.mark.versitygw),
    ],
)
def test_an_upload_cut_off_by_a_kill_is_aborted_by_a_sweep(
    server: str, start_node: NodeFactory, request: pytest.FixtureRequest
) -> None:
    store: Store = request.getfixturevalue(f"{server}_store")
    with fault_proxy(store.endpoint or "") as proxy:
        # Without cuts: their tails are uploads of several parts, too.
        node = start_node(store.through(proxy.endpoint), **{"firn.cut.interval.ms": "-1"})
        Admin(node.bootstrap).create("topic", 1, **TIERED)
        second_part = threading.Event()

        def cut_off(seen: Seen) -> Fault:
            if seen.method == "PUT" and "partNumber=2" in seen.path:
                second_part.set()
                return Fault.REFUSE
            return Fault.REFUSE if second_part.is_set() else Fault.PASS

        proxy.plan = cut_off
        rows = make_rows(ROWS, 1, value_bytes=VALUE_BYTES)
        Confluent().produce(node.bootstrap, "topic", rows)
        assert second_part.wait(30)
        node.kill()
        # More than one where the gateway was slow: the client then asks for an upload once more.
        abandoned = unfinished(store)
        assert abandoned
        assert all(key.endswith(".seg") for key in abandoned)
        proxy.plan = None
        node.start()
        # The segment goes up again under another key.
        wait_until("a segment", lambda: any(key.endswith(".seg") for key in store.objects()), 60)
        wait_until("the uploads of this life to end", lambda: unfinished(store) == abandoned, 60)
        found = Confluent().read(node.bootstrap, "topic", 0, 0, ROWS)
        assert digest(found) == digest(rows)
        node.stop()
    count = len(abandoned)
    assert f"{count} unfinished uploads, none aborted" in sweep(store)
    assert unfinished(store) == abandoned
    assert f"{count} unfinished uploads, {count} aborted" in sweep(store, "--delete")
    assert unfinished(store) == []
    fsck(store)


def sweep(store: Store, *arguments: str) -> str:
    command = [str(FIRN), "sweep", store.url, "--endpoint", store.endpoint or "", "--older-than-hours", "0"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env={**os.environ, **store.env}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
