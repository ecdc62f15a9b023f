"""kill -9 in the middle of a multipart upload: its parts do not stay in the bucket."""

from __future__ import annotations

import threading

import pytest

from tests.conftest import NodeFactory
from tests.support.clients import Admin, Confluent, digest, make_rows
from tests.support.faults import Fault, Seen, fault_proxy
from tests.support.fsck import fsck
from tests.support.processes import wait_until
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
def test_an_upload_cut_off_by_a_kill_is_aborted_after_the_grace(
    server: str, start_node: NodeFactory, request: pytest.FixtureRequest
) -> None:
    store: Store = request.getfixturevalue(f"{server}_store")
    with fault_proxy(store.endpoint or "") as proxy:
        node = start_node(store.through(proxy.endpoint), **{"firn.remote.object.grace.ms": "3000"})
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
        (abandoned,) = unfinished(store)
        assert abandoned.endswith(".seg")
        proxy.plan = None
        node.start()
        wait_until("the upload to be aborted", lambda: abandoned not in unfinished(store), 60)
        # Meanwhile the segment went up again under another key, and nothing of it was mistaken for waste.
        wait_until("the uploads of this life to end", lambda: unfinished(store) == [], 60)
        found = Confluent().read(node.bootstrap, "topic", 0, 0, ROWS)
        assert digest(found) == digest(rows)
        assert any(key.endswith(".seg") for key in store.objects())
        node.stop()
    fsck(store)
