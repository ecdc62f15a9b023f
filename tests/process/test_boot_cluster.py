"""A machine of a cluster at its first start: a controller is formed once, and never again by itself."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from infra.boot.firn_boot.document import Document, Package, parse
from infra.boot.firn_boot.errors import BootError
from infra.boot.firn_boot.fetching import claimed, sign
from infra.boot.firn_boot.steps import everything
from service.base.properties import parse_properties
from service.config.cluster import ClusterConfig
from service.config.given import gather
from service.config.processes import processes_of
from service.config.settings import BrokerConfig
from service.metadata.bootstrap import parse_initial_controllers
from tests.support.model_machine import ModelMachine, Volume, package
from tests.support.stores import CREDENTIALS, moto_server, s3_client

TAR = package()
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
VOTERS = [f"{900 + c}@firn-c{c}.firn.internal:9093:{letter * 21}A" for c, letter in enumerate("abc", 1)]


class Store:
    """Objects that are made once. `lost`: the answer to how many puts does not come back."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.away = False
        self.lost = 0
        self.headers: dict[str, str] = {}

    def claim(self, url: str, region: str, text: str, headers: dict[str, str]) -> str:
        assert region == "eu-central-1"
        self.headers = headers
        if self.away:
            raise urllib.error.URLError("no route to host")
        there = self.objects.setdefault(url, text)
        if self.lost:
            self.lost -= 1
            raise TimeoutError("timed out")
        return there


def document(**changes: Any) -> dict[str, Any]:
    return {
        "host": "firn-c1.firn.internal",
        "nodes": [{"id": 901, "port": 9093, "http_port": 9464, "role": "controller"}],
        "package": {
            "url": "s3://archive/packages/firn.tar",
            "sha256": hashlib.sha256(TAR).hexdigest(),
            "region": "eu-central-1",
        },
        "data": {"device": "/dev/sdf"},
        "cluster": {"id": CLUSTER, "controllers": VOTERS, "formed": "s3://archive/formed"},
        **changes,
    }


def read(**changes: Any) -> Document:
    return parse(json.dumps(document(**changes)))


def get(_: Package) -> Iterator[bytes]:
    yield TAR


def machine_at(root: Path) -> ModelMachine:
    root.mkdir(parents=True, exist_ok=True)
    return ModelMachine(root, {"/dev/sdf": Volume()})


def boot(machine: ModelMachine, store: Store, **changes: Any) -> None:
    everything(machine, read(**changes), "/etc/firn/machine.json", get, store.claim)


def properties(machine: ModelMachine, node: int) -> dict[str, str]:
    return dict(parse_properties((machine.root / f"etc/firn/server-{node}.properties").read_text()))


BROKER = {
    "host": "firn-1.firn.internal",
    "nodes": [{"id": 1, "port": 9092, "http_port": 9464, "role": "broker"}],
}


def test_a_controller_is_formed_once_with_the_ids_that_are_fixed(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    boot(machine, store)
    assert machine.formed == [f"--initial-controllers {','.join(VOTERS)}"]
    assert [str(one) for one in parse_initial_controllers(machine.formed[0].split()[1])] == VOTERS
    assert machine.active == {"firn@901.service": 1}
    assert set(store.objects) == {f"s3://archive/formed/{CLUSTER}/{name}" for name in ("controllers", "901")}
    config = ClusterConfig.from_properties(properties(machine, 901))
    assert (config.is_controller, config.is_broker) == (True, False)
    assert [str(one) for one in config.advertised_controller_listeners] == [
        "CONTROLLER://firn-c1.firn.internal:9093"
    ]
    assert [str(one) for one in config.quorum.bootstrap_servers] == [
        f"firn-c{c}.firn.internal:9093" for c in (1, 2, 3)
    ]
    assert not (tmp_path / "var/lib/firn/node-901/.forming").exists()
    boot(machine, store)
    assert len(machine.formed) == 1
    assert machine.active == {"firn@901.service": 1}


def test_boot_does_not_format_a_broker(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    boot(machine, store, **BROKER)
    assert machine.formed == []
    assert store.objects == {}
    config = ClusterConfig.from_properties(properties(machine, 1))
    assert (config.is_controller, config.is_broker) == (False, True)
    assert config.inter_broker_listener_name == "PLAINTEXT"


def test_a_volume_that_went_to_another_machine_is_not_formed_again(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path / "old"), Store()
    boot(machine, store)
    store.away = True  # and it is not needed
    new = machine_at(tmp_path / "new")
    (new.root / "var/lib").mkdir(parents=True)
    (tmp_path / "old/var/lib/firn").rename(new.root / "var/lib/firn")
    new.on = "/dev/sdf"
    boot(new, store)
    assert new.formed == []
    assert new.active == {"firn@901.service": 1}


def test_a_controller_that_lost_its_volume_is_not_formed_again(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path / "old"), Store()
    boot(machine, store)
    new = machine_at(tmp_path / "new")
    for _ in range(2):
        with pytest.raises(BootError, match=r"cluster: node 901 .*/901 says .* formed before"):
            boot(new, store)
    assert new.formed == []
    assert new.active == {}


@pytest.mark.parametrize("lost", ["by hand", "emptied"])
def test_a_controller_that_was_formed_elsewhere_is_not_formed_again(tmp_path: Path, lost: str) -> None:
    """`formed` was named after somebody had formatted by hand, or the bucket was emptied meanwhile."""
    machine, store = machine_at(tmp_path / "old"), Store()
    home = machine.root / "var/lib/firn/node-901"
    if lost == "by hand":
        home.mkdir(parents=True)
        (home / "meta.properties").write_text(f"node.id=901\ncluster.id={CLUSTER}\n")
        machine.on = "/dev/sdf"
    else:
        boot(machine, store)
        store.objects.clear()
    boot(machine, store)
    new = machine_at(tmp_path / "new")
    with pytest.raises(BootError, match=r"cluster: node 901 .*/901 says .* formed before"):
        boot(new, store)
    assert (new.formed, new.active) == ([], {})
    boot(machine, store)
    assert machine.active == {"firn@901.service": 1}


@pytest.mark.parametrize("error", [urllib.error.URLError("no route"), http.client.BadStatusLine("?")])
def test_a_controller_with_its_volume_does_not_wait_for_the_store(tmp_path: Path, error: Exception) -> None:
    machine, store = machine_at(tmp_path), Store()
    boot(machine, store)
    document = read(properties={"broker.session.timeout.ms": "9000"})

    def claim(url: str, region: str, text: str, headers: dict[str, str]) -> str:
        raise error

    everything(machine, document, "/etc/firn/machine.json", get, claim)
    assert machine.active == {"firn@901.service": 2}
    assert any("/901: " in line and "formed" in line for line in machine.said)


def test_a_cluster_formed_with_other_controllers_is_not_formed_again(tmp_path: Path) -> None:
    """As when somebody raises the number of controllers."""
    store = Store()
    boot(machine_at(tmp_path / "1"), store)
    five = [*VOTERS, *(f"90{c}@firn-c{c}.firn.internal:9093:{'x' * 20}{c}A" for c in (4, 5))]
    changes = {
        "host": "firn-c4.firn.internal",
        "nodes": [{"id": 904, "port": 9093, "http_port": 9464, "role": "controller"}],
        "cluster": {"id": CLUSTER, "controllers": five, "formed": "s3://archive/formed"},
    }
    machine = machine_at(tmp_path / "4")
    with pytest.raises(BootError, match=r"/controllers says .*formed before"):
        boot(machine, store, **changes)
    assert (machine.formed, machine.active) == ([], {})
    assert f"s3://archive/formed/{CLUSTER}/904" not in store.objects


def test_without_the_store_no_empty_controller_starts(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    store.away = True
    with pytest.raises(BootError, match=r"cluster: s3://.*no route"):
        boot(machine, store)

    def claim(url: str, region: str, text: str, headers: dict[str, str]) -> str:
        raise http.client.BadStatusLine("?")

    with pytest.raises(BootError, match=r"cluster: s3://.*an empty controller does not start"):
        everything(machine, read(), "/etc/firn/machine.json", get, claim)
    assert (machine.formed, machine.active) == ([], {})
    store.away = False
    boot(machine, store)
    assert len(machine.formed) == 1


def test_a_put_whose_answer_is_lost_is_our_own(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    store.lost = 2
    for _ in range(2):
        with pytest.raises(BootError, match="timed out"):
            boot(machine, store)
    boot(machine, store)
    assert len(machine.formed) == 1


def test_every_step_can_fail_and_the_next_run_goes_on_from_there(tmp_path: Path) -> None:
    whole = machine_at(tmp_path / "whole")
    boot(whole, Store())
    failed = set()
    for k in range(1, len(whole.commands) + 1):
        machine, store = machine_at(tmp_path / str(k)), Store()
        machine.fail_at = k
        with pytest.raises(BootError, match="planted") as told:
            boot(machine, store)
        failed.add(str(told.value).partition(":")[0])
        machine.fail_at = None
        boot(machine, store)
        assert len(machine.formed) == 1, k
        assert machine.active.keys() == {"firn@901.service"}, k
        assert not (machine.root / "var/lib/firn/node-901/.forming").exists(), k
    assert "cluster" in failed


def test_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    boot(machine, store)
    with pytest.raises(BootError, match=f"cluster.id is {CLUSTER}, not A"):
        boot(machine, store, cluster={"id": "A" * 22, "controllers": VOTERS})
    meta = tmp_path / "var/lib/firn/node-901/meta.properties"
    meta.write_text(meta.read_text().replace("901", "1"))
    with pytest.raises(BootError, match=r"node\.id is 1, not 901"):
        boot(machine, store)


def test_a_log_without_its_identity_is_refused(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    (tmp_path / "var/lib/firn/node-901/__cluster_metadata-0").mkdir(parents=True)
    machine.on = "/dev/sdf"
    with pytest.raises(BootError, match=r"no meta\.properties"):
        boot(machine, store)
    assert (machine.formed, store.objects) == ([], {})


def test_a_manually_formed_controller_must_be_formatted_first(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    cluster = {"id": CLUSTER, "controllers": VOTERS}
    with pytest.raises(BootError, match="`firn format`"):
        boot(machine, store, cluster=cluster)
    home = tmp_path / "var/lib/firn/node-901"
    (home / "meta.properties").write_text(f"node.id=901\ncluster.id={CLUSTER}\n")
    boot(machine, store, cluster=cluster)
    assert machine.active == {"firn@901.service": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": []}, "cluster: an object"),
        ({"cluster": {"id": CLUSTER}}, "controllers is missing"),
        ({"cluster": {"id": "firn", "controllers": VOTERS}}, "cluster.id"),
        ({"cluster": {"id": CLUSTER, "controllers": []}}, "none, or two"),
        ({"cluster": {"id": CLUSTER, "controllers": [VOTERS[0], VOTERS[0]]}}, "none, or two"),
        ({"cluster": {"id": CLUSTER, "controllers": ["901@a:9093"]}}, r"controllers\[0\]: id@host"),
        ({"cluster": {"id": CLUSTER, "controllers": VOTERS, "formed": "/tmp"}}, "cluster.formed"),
        ({"cluster": {"id": CLUSTER, "controllers": VOTERS[1:]}}, "does not name 901@"),
        ({"host": "elsewhere"}, "does not name 901@elsewhere:9093"),
        ({"nodes": [{"id": 901, "port": 9092, "http_port": 9464, "role": "broker"}]}, "id of a controller"),
        ({"nodes": [{"id": 901, "port": 9093, "http_port": 9464, "role": "king"}]}, "role: one of"),
        ({"nodes": [{"id": 901, "port": 9093, "http_port": 9464}]}, "role: with `cluster`"),
        ({"properties": {"controller.quorum.voters": "1@a:1"}}, "is made from"),
    ],
)
def test_a_cluster_that_is_not_right_is_refused_by_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BootError, match=words):
        read(**changes)


def test_a_role_without_a_cluster_is_refused() -> None:
    raw = document(nodes=[{"id": 1, "port": 9092, "http_port": 9464, "role": "broker"}])
    del raw["cluster"]
    with pytest.raises(BootError, match="role: with `cluster`"):
        parse(json.dumps(raw))


# -- the mark in S3


def test_a_bucket_that_demands_encryption_gets_its_headers_with_the_mark(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    boot(machine, store)
    assert store.headers == {}
    key = "arn:aws:kms:eu-central-1:123456789012:key/1"
    settings = {"firn.remote.s3.sse": "aws:kms", "firn.remote.s3.sse.kms.key.id": key}
    boot(machine_at(tmp_path / "2"), store := Store(), properties=settings)
    assert store.headers == {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": key,
    }


def test_a_mark_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with moto_server(tmp_path) as endpoint:
        s3_client(endpoint).create_bucket(Bucket="archive")
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        assert claimed("s3://archive/formed/c/901", "us-east-1", "ours") == "ours"
        assert claimed("s3://archive/formed/c/901", "us-east-1", "theirs") == "ours"
        assert claimed("s3://archive/formed/c/901", "us-east-1", "ours") == "ours"
        with pytest.raises(OSError, match="404"):
            claimed("s3://elsewhere/formed/c/901", "us-east-1", "ours")


def test_a_put_is_signed_as_the_sdk_signs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: now)
    host = "archive.s3.eu-central-1.amazonaws.com"
    request = botocore.awsrequest.AWSRequest(
        "PUT", f"https://{host}/formed/1", {"content-type": "text/plain", "if-none-match": "*"}, b"said"
    )
    keys = botocore.credentials.Credentials("AKID", "secret", None)
    botocore.auth.S3SigV4Auth(keys, "s3", "eu-central-1").add_auth(request)
    mine = {"AccessKeyId": "AKID", "SecretAccessKey": "secret", "Token": ""}
    given = {
        "host": host,
        "content-type": "text/plain",
        "if-none-match": "*",
        "x-amz-content-sha256": hashlib.sha256(b"said").hexdigest(),
    }
    ours = sign(mine, ("s3", "eu-central-1"), "PUT", "/formed/1", now, given, b"said")
    assert ours["Authorization"] == request.headers["Authorization"]


ONE: dict[str, Any] = {"id": 1, "port": 9092, "http_port": 9464, "role": "broker"}
SEVERAL: dict[str, Any] = {**BROKER, "nodes": [{**ONE, "processes": 3}]}


def test_several_processes_are_one_service_of_one_file(tmp_path: Path) -> None:
    machine = machine_at(tmp_path)
    boot(machine, Store(), **SEVERAL)
    assert machine.active == {"firn@1.service": 1}
    given = gather(tmp_path / "etc/firn/server-1.properties", (), {})
    configs = [one.checked(BrokerConfig.from_properties) for one in processes_of(given, cores=1)]
    assert [one.node_id for one in configs] == [1, 1001, 2001]
    assert [str(one.advertised_listeners[0]) for one in configs] == [
        f"PLAINTEXT://firn-1.firn.internal:{port}" for port in (9092, 9093, 9094)
    ]
    assert [one.http_listener for one in configs] == [f"0.0.0.0:{port}" for port in (9464, 9465, 9466)]
    assert [str(one.log_dirs[0]) for one in configs] == [
        "/var/lib/firn/node-1",
        "/var/lib/firn/node-1/processes/1001",
        "/var/lib/firn/node-1/processes/2001",
    ]


def test_a_process_that_does_not_serve_is_waited_for(tmp_path: Path) -> None:
    machine = machine_at(tmp_path)
    machine.deaf = {9094}
    with pytest.raises(BootError, match="node 1 does not serve"):
        boot(machine, Store(), **SEVERAL)


def test_data_of_a_service_of_its_own_is_not_begun_anew_beside(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path, {"/dev/sdf": Volume("ext4", "firn-data", names=["node-1", "node-1001"])})
    with pytest.raises(BootError, match=r"node-1001 is of a service of its own: .*node-1/processes/1001"):
        boot(machine, Store(), **SEVERAL)
    assert not machine.active


def test_data_of_a_service_of_several_is_not_begun_anew_beside(tmp_path: Path) -> None:
    machine, store = machine_at(tmp_path), Store()
    boot(machine, store, **SEVERAL)
    (tmp_path / "var/lib/firn/node-1/processes/1001").mkdir(parents=True)
    node = {**ONE, "id": 1001, "port": 9093, "http_port": 9465}
    with pytest.raises(BootError, match=r"node-1/processes/1001 is of a service of several nodes"):
        boot(machine, store, **{**BROKER, "nodes": [ONE, node]})
    assert machine.active == {"firn@1.service": 1}


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([{"id": 901, "port": 9093, "http_port": 9464, "role": "controller", "processes": 2}], "of brokers"),
        ([{**SEVERAL["nodes"][0], "processes": 65}], "1 to 64"),
        ([SEVERAL["nodes"][0], {"id": 2001, "port": 9100, "http_port": 9500, "role": "broker"}], "same id"),
        (
            [SEVERAL["nodes"][0], {"id": 7, "port": 9094, "http_port": 9500, "role": "broker"}],
            "same id or port",
        ),
    ],
)
def test_impossible_processes_are_refused(nodes: list[dict[str, Any]], problem: str) -> None:
    host = "firn-c1.firn.internal" if nodes[0]["role"] == "controller" else "firn-1.firn.internal"
    with pytest.raises(BootError, match=problem):
        read(host=host, nodes=nodes)
