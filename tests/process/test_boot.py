"""The first start of a machine, on a model of one; and every step of it failing."""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from infra.boot import firn_boot
from infra.boot.firn_boot.__main__ import main
from infra.boot.firn_boot.document import Document, Package, parse
from infra.boot.firn_boot.errors import BootError
from infra.boot.firn_boot.fetching import received, sign
from infra.boot.firn_boot.nvme import ebs_name
from infra.boot.firn_boot.package import download, unpack
from infra.boot.firn_boot.steps import everything
from infra.boot.firn_boot.volume import step_mount
from service.base.properties import parse_properties
from tests.support.model_machine import ModelMachine, Volume, package

TAR = package()
SHA = hashlib.sha256(TAR).hexdigest()


def document(**changes: Any) -> dict[str, Any]:
    return {
        "host": "firn-1.firn.internal",
        "nodes": [
            {"id": 1, "port": 9092, "http_port": 9464},
            {"id": 1001, "port": 9093, "http_port": 9465},
        ],
        "package": {"url": "s3://archive/packages/firn.tar", "sha256": SHA, "region": "eu-central-1"},
        "data": {"device": "/dev/sdf"},
        "properties": {"firn.remote.url": "s3://archive/firn", "broker.rack": "eu-central-1a"},
        **changes,
    }


def read(**changes: Any) -> Document:
    return parse(json.dumps(document(**changes)))


def get(package: Package) -> Iterator[bytes]:
    yield TAR[:1000]
    yield TAR[1000:]


def boot(machine: ModelMachine, **changes: Any) -> None:
    everything(machine, read(**changes), "/etc/firn/machine.json", get)


def files(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = (
            str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "/"
        )
    return found


def machine_with(root: Path, volume: Volume) -> ModelMachine:
    root.mkdir(exist_ok=True)
    return ModelMachine(root, {"/dev/sdf": volume})


# -- the whole


def test_a_first_start_ends_with_nodes_that_run(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine)
    assert machine.volumes["/dev/sdf"].formatted == 1
    assert machine.on == "/dev/sdf"
    assert machine.active == {"firn@1.service": 1, "firn@1001.service": 1}
    assert machine.enabled == set(machine.active)
    assert (tmp_path / "opt/firn/current/bin/firn").exists()
    settings = parse_properties((tmp_path / "etc/firn/server-1001.properties").read_text())
    assert settings["advertised.listeners"] == "PLAINTEXT://firn-1.firn.internal:9093"
    assert settings["log.dirs"] == "/var/lib/firn/node-1001"
    assert settings["firn.remote.url"] == "s3://archive/firn"


def test_a_second_run_changes_and_restarts_nothing(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine)
    before = files(tmp_path)
    machine.commands.clear()
    boot(machine)
    assert files(tmp_path) == before
    assert set(machine.active.values()) == {1}
    assert not {"mkfs.ext4", "mount", "useradd", "chown"} & {command[0] for command in machine.commands}
    assert not [command for command in machine.commands if "venv" in command]


def test_every_step_can_fail_and_the_next_run_goes_on_from_there(tmp_path: Path) -> None:
    whole = machine_with(tmp_path / "whole", Volume())
    boot(whole)
    steps = ("user: ", "data volume: ", "package: ", "server.properties: ", "units: ", "start: ")
    named = set()
    for k in range(1, len(whole.commands) + 1):
        machine = machine_with(tmp_path / str(k), Volume())
        machine.fail_at = k
        with pytest.raises(BootError, match="planted") as told:
            boot(machine)
        named.add(next(step for step in steps if str(told.value).startswith(step)))
        machine.fail_at = None
        boot(machine)
        assert files(machine.root) == files(whole.root), k
        assert machine.volumes["/dev/sdf"].formatted == 1, k
        assert set(machine.active) == set(whole.active), k
    assert named == set(steps)


def test_a_package_that_cannot_be_installed_leaves_the_current_one(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine)
    current = (tmp_path / "opt/firn/current").readlink()
    with pytest.raises(BootError, match=r"package: .* not 00"):
        boot(machine, package={"url": "s3://archive/packages/new.tar", "sha256": "0" * 64})
    assert (tmp_path / "opt/firn/current").readlink() == current
    assert set(machine.active.values()) == {1}


def test_an_upgrade_restarts_nodes_one_after_another(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine)
    new = package("firn_log-0.2.0-cp311-cp311-linux_x86_64.whl", "pip-26.0-py3-none-any.whl")
    machine.deaf.add(9092)
    changed = {"url": "s3://archive/packages/new.tar", "sha256": hashlib.sha256(new).hexdigest()}
    upgrade = read(package=changed)
    with pytest.raises(BootError, match="start: node 1 does not serve"):
        everything(machine, upgrade, "/etc/firn/machine.json", lambda _: iter([new]))
    # The first does not come up, so the second stays on what it runs.
    assert machine.active == {"firn@1.service": 2, "firn@1001.service": 1}
    # It may be looking through its logs: it is waited for again, and not started over.
    with pytest.raises(BootError, match="start: node 1 does not serve"):
        everything(machine, upgrade, "/etc/firn/machine.json", lambda _: iter([new]))
    assert machine.active == {"firn@1.service": 2, "firn@1001.service": 1}
    machine.deaf.clear()
    everything(machine, upgrade, "/etc/firn/machine.json", lambda _: iter([new]))
    assert machine.active == {"firn@1.service": 2, "firn@1001.service": 2}
    assert (tmp_path / "opt/firn/current").readlink() == Path(changed["sha256"][:16])
    assert (
        len(list((tmp_path / "opt/firn").glob("????????????????"))) == 2
    )  # the one before is there to go back to


def test_a_changed_property_restarts_nodes_and_a_new_one_leaves_the_others(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine, nodes=document()["nodes"][:1])
    boot(machine)
    assert machine.active == {"firn@1.service": 1, "firn@1001.service": 1}
    boot(machine, properties={"num.partitions": "3"})
    assert machine.active == {"firn@1.service": 2, "firn@1001.service": 2}


def test_a_node_that_ended_meanwhile_is_started(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine)
    del machine.active["firn@1.service"]
    boot(machine)
    assert machine.active == {"firn@1.service": 1, "firn@1001.service": 1}


def test_a_hand_edited_file_is_backed_up_and_reported(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine)
    file = tmp_path / "etc/firn/server-1.properties"
    ours = file.read_text()
    file.write_text(ours + "num.partitions=7\n")
    boot(machine)
    assert file.read_text() == ours
    assert (tmp_path / "etc/firn/server-1.properties.edited").read_text() == ours + "num.partitions=7\n"
    assert "/etc/firn/server-1.properties was changed by hand" in "".join(machine.said)
    machine.said.clear()
    boot(machine, properties={"num.partitions": "3"})  # a change of the document is nobody's edit
    assert "by hand" not in "".join(machine.said)


def test_properties_that_were_there_before_firn_boot_are_kept(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    (tmp_path / "etc/firn").mkdir(parents=True)
    (tmp_path / "etc/firn/server-1.properties").write_text("node.id=1\n")
    boot(machine)
    assert (tmp_path / "etc/firn/server-1.properties.edited").read_text() == "node.id=1\n"


def test_two_runs_at_a_time_come_one_after_the_other(tmp_path: Path) -> None:
    """systemd tries every half minute; people do not ask it first."""
    first, second = machine_with(tmp_path, Volume()), machine_with(tmp_path, Volume())
    second.on = "/dev/sdf"  # it is one machine
    inside: list[str] = []
    reached, go_on = threading.Event(), threading.Event()

    def slow(package: Package) -> Iterator[bytes]:
        inside.append("first")
        reached.set()
        assert go_on.wait(60)
        yield from get(package)
        inside.append("first is done")

    def other(package: Package) -> Iterator[bytes]:
        inside.append("second")
        return get(package)

    def run(machine: ModelMachine, fetch: Callable[[Package], Iterator[bytes]]) -> threading.Thread:
        thread = threading.Thread(
            target=everything, args=(machine, read(), "/etc/firn/machine.json", fetch), daemon=True
        )
        thread.start()
        return thread

    one = run(first, slow)
    assert reached.wait(60)
    two = run(second, other)
    two.join(0.2)
    go_on.set()
    one.join(60)
    two.join(60)
    assert inside == ["first", "first is done"]  # the second found it installed
    assert (tmp_path / "opt/firn/current/bin/firn").exists()


# -- the volume


def test_a_volume_with_a_file_system_is_never_formatted(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume("ext4", "firn-data", edges=b"x"))
    boot(machine)
    assert machine.volumes["/dev/sdf"].formatted == 0
    assert machine.on == "/dev/sdf"
    assert ("resize2fs", "/dev/sdf") not in machine.commands


def test_a_volume_that_was_enlarged_is_used_whole(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume("ext4", "firn-data", size=2 << 30))
    boot(machine)
    assert machine.volumes["/dev/sdf"].used == 2 << 30


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        (Volume(edges=b"\0\0x"), "not empty"),
        (Volume(kind="ntfs"), "holds ntfs"),
        (Volume(kind="LVM2_member"), "holds LVM2_member"),
        (Volume(several=True), "several"),
        (Volume(children=["sdf1"]), "sdf1"),
    ],
)
def test_a_volume_that_may_be_somebodys_is_refused(tmp_path: Path, volume: Volume, words: str) -> None:
    machine = machine_with(tmp_path, volume)
    with pytest.raises(BootError, match=words):
        boot(machine)
    assert volume.formatted == 0
    assert machine.on is None
    assert not machine.active


def test_files_of_another_machines_user_become_this_ones(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume("ext4", "firn-data"))
    machine.number += 1
    boot(machine)
    folder = str(tmp_path / "var/lib/firn/node-1")
    assert ("chown", "-R", "firn:firn", folder) in machine.commands


def test_a_volume_that_is_attached_late_is_waited_for(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    machine.attached_later[90.0] = ("/dev/sdf", Volume())
    boot(machine)
    assert machine.on == "/dev/sdf"


def test_a_volume_that_never_comes_is_said_and_nothing_starts_on_the_root_disk(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    with pytest.raises(BootError, match=r"data volume: /dev/sdf: no such volume after 600 s"):
        boot(machine)
    assert not machine.active
    assert not list((tmp_path / "var/lib/firn").iterdir())


def test_a_volume_is_found_by_the_name_that_its_controller_tells(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path, {"/dev/nvme0n1": Volume("ext4"), "/dev/nvme1n1": Volume()})
    machine.nvme = {"/dev/nvme0n1": "xvda", "/dev/nvme1n1": "sdf"}
    boot(machine)
    assert machine.on == "/dev/nvme1n1"
    assert machine.volumes["/dev/nvme0n1"].formatted == 0


def test_a_nodes_volume_is_found_under_another_name_by_its_label(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path, {"/dev/vdb": Volume("ext4", "firn-data"), "/dev/vdc": Volume()})
    boot(machine)
    assert machine.on == "/dev/vdb"
    two = ModelMachine(tmp_path, {name: Volume("ext4", "firn-data") for name in ("/dev/vdb", "/dev/vdc")})
    with pytest.raises(BootError, match="several volumes"):
        step_mount(two, read())


@pytest.mark.parametrize("names", [[], ["lost+found"], ["lost+found", "node-1"]])
def test_a_file_system_of_an_operators_making_is_taken(tmp_path: Path, names: list[str]) -> None:
    machine = machine_with(tmp_path, Volume("xfs", names=names))
    boot(machine)
    assert machine.on == "/dev/sdf"
    assert machine.volumes["/dev/sdf"].formatted == 0


def test_a_file_system_with_somebodys_files_is_left_as_it_is(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume("ext4", names=["home", "lost+found", "var"], size=2 << 30))
    with pytest.raises(BootError, match=r"data volume: /dev/sdf: .* no node's \(home, var\).* label"):
        boot(machine)
    assert machine.on is None
    assert not {"e2fsck", "resize2fs"} & {command[0] for command in machine.commands}
    looked = [command for command in machine.commands if command[0] == "mount"]
    assert [command[2].split(",")[:2] for command in looked] == [["ro", "noload"]]
    machine.volumes["/dev/sdf"].label = "firn-data"  # an operator who means it says so
    boot(machine)
    assert machine.on == "/dev/sdf"


def test_the_volume_of_another_machine_is_refused(tmp_path: Path) -> None:
    """A new node beside it would be another cluster on the same prefix."""
    machine = machine_with(tmp_path, Volume("ext4", "firn-data", names=["lost+found", "node-2", "node-1002"]))
    with pytest.raises(BootError, match=r"has node-2, node-1002, not node-1, node-1001: another machine's"):
        boot(machine)
    assert not machine.active
    more = machine_with(tmp_path / "more", Volume("ext4", "firn-data", names=["node-1"]))
    boot(more)  # a second node on a machine that had one
    assert len(more.active) == 2


def test_a_power_cut_while_formatting_is_gone_on_from(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    machine.cut_in_mkfs = True
    with pytest.raises(BootError, match="planted"):
        boot(machine)
    machine.cut_in_mkfs = False
    machine.volumes["/dev/sdf"].serial = "vol-2"  # another volume, with something on it that nobody knows
    with pytest.raises(BootError, match="not empty"):
        boot(machine)
    machine.volumes["/dev/sdf"].serial = "vol-1"
    boot(machine)
    assert machine.volumes["/dev/sdf"].kind == "ext4"
    assert not (tmp_path / "var/lib/firn-boot/formatting").exists()


def test_files_that_a_mount_would_hide_are_refused(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    (tmp_path / "var/lib/firn/node-1").mkdir(parents=True)
    with pytest.raises(BootError, match="would hide"):
        boot(machine)
    assert machine.volumes["/dev/sdf"].formatted == 0


def test_another_volume_in_its_place_is_refused(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    machine.on = "/dev/sdz"
    with pytest.raises(BootError, match="something else"):
        boot(machine)


def test_without_a_volume_a_directory_does(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    changed = document()
    del changed["data"]
    everything(machine, parse(json.dumps(changed)), "/etc/firn/machine.json", get)
    assert machine.on is None
    unit = (tmp_path / "etc/systemd/system/firn@.service").read_text()
    assert "firn-data" not in unit
    assert not (tmp_path / "etc/systemd/system/firn-data.service").exists()


# -- the package


def test_a_download_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    machine, tries = ModelMachine(tmp_path), []

    def failing(_: Package) -> Iterator[bytes]:
        tries.append(1)
        yield TAR[:10]
        if len(tries) < 3:
            raise ConnectionResetError("reset")
        yield TAR[10:]

    download(machine, read().package, tmp_path / "tar", failing)
    assert (tmp_path / "tar").read_bytes() == TAR
    assert len(tries) == 3

    def away(_: Package) -> Iterator[bytes]:
        raise TimeoutError("timed out")
        yield b""

    with pytest.raises(BootError, match="timed out"):
        download(machine, read().package, tmp_path / "tar", away)
    assert machine.time < 300


def test_a_full_disk_is_said_at_once(tmp_path: Path) -> None:
    machine = ModelMachine(tmp_path)
    with pytest.raises(BootError, match="/dev/full: No space left on device"):
        download(machine, read().package, Path("/dev/full"), get)
    assert machine.time == 0


def test_a_connection_that_ends_too_early_is_no_whole_package() -> None:
    """urllib takes it for the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(400))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="ended after 400 of 1000 bytes"):
            list(received(urllib.request.Request(f"http://127.0.0.1:{server.getsockname()[1]}/firn.tar")))
        thread.join()


def test_other_bytes_than_promised_are_not_installed(tmp_path: Path) -> None:
    with pytest.raises(BootError, match="SHA-256"):
        download(ModelMachine(tmp_path), read().package, tmp_path / "tar", lambda _: iter([TAR, b"x"]))


def test_a_tar_writes_wheels_alone_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    archive = tmp_path / "a/tar"
    archive.write_bytes(package("../../evil.whl", "/etc/evil.whl", "x.sh", "./good-1.whl", "sub/also-1.whl"))
    unpack(archive, tmp_path / "a/wheels")
    names = sorted(path.name for path in (tmp_path / "a/wheels").iterdir())
    assert names == ["also-1.whl", "evil.whl", "good-1.whl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    archive.write_bytes(b"<html>")
    with pytest.raises(BootError, match="no tar"):
        unpack(archive, tmp_path / "a/other")


def test_a_package_without_firn_or_pip_is_refused(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    tar = package("kio-0.6.5-py3-none-any.whl")
    other = {"url": "/root/firn.tar", "sha256": hashlib.sha256(tar).hexdigest()}
    with pytest.raises(BootError, match="lacks a wheel"):
        everything(machine, read(package=other), "/etc/firn/machine.json", lambda _: iter([tar]))
    assert not (tmp_path / "opt/firn/current").exists()


# -- the document


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": "red"}, "colour is not known"),
        ({"host": "a b"}, "host"),
        ({"host": "x" * 300}, "host"),
        ({"host": "a\nlisteners=X"}, "control characters"),
        ({"nodes": []}, "nodes"),
        ({"nodes": [{"id": 1, "port": 9092, "http_port": 9092}]}, "same id or port"),
        ({"nodes": [{"id": 1, "port": 0, "http_port": 9464}]}, r"nodes\[0\].port"),
        ({"nodes": [{"id": True, "port": 1, "http_port": 9464}]}, r"nodes\[0\].id"),
        ({"package": {"url": "http://x/y", "sha256": SHA}}, "package.url"),
        ({"package": {"url": "s3://b/k", "sha256": SHA.upper()}}, "package.sha256"),
        ({"data": {"device": "/dev/../etc/passwd"}}, "data.device"),
        ({"data": {"device": "sdf"}}, "data.device"),
        ({"data": {}}, "device is missing"),
        ({"properties": {"log.dirs": "/"}}, "log.dirs is made from"),
        ({"properties": {"a\nb": "c"}}, "is no key"),
        ({"properties": {"a": "b\nc"}}, "control characters"),
        ({"properties": []}, "properties"),
        ({"stop_timeout_s": 1}, "stop_timeout_s"),
    ],
)
def test_a_document_that_is_not_right_is_refused_by_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BootError, match=words):
        read(**changes)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000])
def test_a_malformed_boot_document_is_refused(text: str) -> None:
    with pytest.raises(BootError):
        parse(text)


@pytest.mark.parametrize("value", ["a b", "  a", "\\x", "C:\\dir", "a=b:c", "#x", "ä", ""])
def test_values_come_out_of_the_properties_as_they_went_in(tmp_path: Path, value: str) -> None:
    machine = machine_with(tmp_path, Volume())
    boot(machine, properties={"key": value})
    assert parse_properties((tmp_path / "etc/firn/server-1.properties").read_text())["key"] == value


# -- the command


def test_the_command_says_what_is_wrong_and_leaves_with_1(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, Volume())
    assert main(["--config", "etc/machine.json", "install"], machine) == 1
    assert "No such file" in machine.said[-1]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine.json").write_text(json.dumps(document(colour="red")))
    assert main(["--config", "etc/machine.json", "check"], machine) == 1
    assert "colour is not known" in machine.said[-1]
    (tmp_path / "etc/machine.json").write_text(json.dumps(document()))
    assert main(["--config", "etc/machine.json", "check"], machine) == 0
    assert not machine.commands
    assert main(["--config", "etc/machine.json", "mount"], machine) == 0
    assert machine.on == "/dev/sdf"


def test_boot_needs_only_pythons_standard_library() -> None:
    """A new machine has nothing else, and some have Python 3.11."""
    modules = sorted(Path(firn_boot.__file__).parent.glob("*.py"))
    assert len(modules) > 5
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 11))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").partition(".")[0] in sys.stdlib_module_names, path
            if isinstance(node, ast.Import):
                assert {one.name.partition(".")[0] for one in node.names} <= sys.stdlib_module_names, path


# -- fetching


@pytest.mark.parametrize("token", ["", "a-session/token+=="])
def test_requests_are_signed_as_the_sdk_signs_them(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: now)
    request = botocore.awsrequest.AWSRequest(
        "GET", "https://archive.s3.eu-central-1.amazonaws.com/packages/firn%2B1.tar"
    )
    keys = botocore.credentials.Credentials("AKID", "secret", token or None)
    botocore.auth.S3SigV4Auth(keys, "s3", "eu-central-1").add_auth(request)
    ours = sign(
        {"AccessKeyId": "AKID", "SecretAccessKey": "secret", "Token": token},
        ("s3", "eu-central-1"),
        "GET",
        "/packages/firn%2B1.tar",
        now,
        {
            "host": "archive.s3.eu-central-1.amazonaws.com",
            "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        },
    )
    assert ours["Authorization"] == request.headers["Authorization"]


def test_an_ebs_volume_tells_the_name_it_was_attached_by() -> None:
    said = bytearray(4096)
    said[24:64] = b"Amazon Elastic Block Store".ljust(40)
    said[3072:3104] = b"/dev/sdf".ljust(32)
    assert ebs_name(bytes(said)) == "sdf"
    said[3072:3104] = b"xvdf\0garbage".ljust(32)
    assert ebs_name(bytes(said)) == "xvdf"
    said[24:64] = b"Amazon EC2 NVMe Instance Storage".ljust(40)
    assert ebs_name(bytes(said)) is None
