"""The data volume on real block devices: what is empty is formatted, what may be somebody's is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.boot.firn_boot import volume as steps
from infra.boot.firn_boot.document import Document, parse
from infra.boot.firn_boot.errors import BootError
from infra.boot.firn_boot.machine import Machine
from tests.infra.machines import need_devices, run, volume


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    need_devices()
    with volume(tmp_path, 64) as made:
        yield made


@pytest.fixture
def where(tmp_path: Path, device: str) -> Iterator[Path]:
    """Where it is mounted, below a root of the test's own."""
    path = tmp_path / "root/var/lib/firn"
    yield path
    if path.exists():
        run("umount", str(path), fine=(0, 32))


def asked(device: str) -> Document:
    node = {"id": 1, "port": 9092, "http_port": 9464}
    package = {"url": "/firn.tar", "sha256": "0" * 64}
    return parse(json.dumps({"host": "a", "nodes": [node], "package": package, "data": {"device": device}}))


def mount(where: Path, device: str) -> None:
    steps.step_mount(Machine(where.parents[2]), asked(device))


def type_of(device: str) -> str:
    return run("blkid", "-p", "-o", "value", "-s", "TYPE", device, fine=(0, 2)).strip()


def test_an_empty_volume_is_formatted_once_and_keeps_what_is_written(where: Path, device: str) -> None:
    mount(where, device)
    assert type_of(device) == "ext4"
    (where / "kept").write_text("kept")
    mount(where, device)  # mounted already
    run("umount", str(where))
    mount(where, device)
    assert (where / "kept").read_text() == "kept"


def test_a_volume_that_was_enlarged_is_used_whole(tmp_path: Path, where: Path, device: str) -> None:
    mount(where, device)
    run("umount", str(where))
    with (tmp_path / "volume.img").open("r+b") as image:
        image.truncate(256 << 20)
    run("losetup", "--set-capacity", device)
    mount(where, device)
    blocks = int(run("stat", "-f", "-c", "%b", str(where))) * int(run("stat", "-f", "-c", "%S", str(where)))
    assert blocks > 200 << 20


PLANTED = {
    "a partition table": (
        r"printf '\0\0\2\0\203\0\0\0\0\10\0\0\0\100\0\0' | dd of={0} bs=1 seek=446 conv=notrunc status=none; "
        r"printf '\125\252' | dd of={0} bs=1 seek=510 conv=notrunc status=none"
    ),
    "swap": "mkswap -q {0}",
    "a file system that is none of ours": "mkfs.ext4 -q {0} && mkfs.ext2 -q -F {0}",
    "somebody's files": (
        "mkfs.ext4 -q {0} && d=$(mktemp -d) && mount {0} $d && "
        "mkdir $d/home && echo x >$d/home/kept && umount $d && rmdir $d"
    ),
    "bytes at its beginning": "printf x | dd of={0} bs=1 seek=5000 conv=notrunc status=none",
    "bytes at its end": "printf x | dd of={0} bs=1 seek=67108000 conv=notrunc status=none",
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_volume_that_may_be_somebodys_is_left_as_it_is(where: Path, device: str, what: str) -> None:
    run("sh", "-c", PLANTED[what].format(device))
    before = Path(device).read_bytes()
    with pytest.raises(BootError, match=device):
        mount(where, device)
    assert Path(device).read_bytes() == before
    assert not where.is_mount()


def test_a_power_cut_while_formatting_is_gone_on_from(
    where: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mke2fs leaves a device that it did not finish: group descriptors, and no superblock yet."""
    cut = "mkfs.ext4 -q {0} && dd if=/dev/zero of={0} bs=1024 seek=1 count=1 conv=notrunc status=none"
    where.parents[2].mkdir()
    machine = Machine(where.parents[2])
    (where.parents[2] / "sys").symlink_to("/sys")
    do = machine.run

    def run_until_the_cut(*command: str, fine: tuple[int, ...] = (0,)) -> tuple[int, str]:
        if command[0] != "mkfs.ext4":
            return do(*command, fine=fine)
        run("sh", "-c", cut.format(device))
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "run", run_until_the_cut)
    with pytest.raises(KeyboardInterrupt):
        steps.step_mount(machine, asked(device))
    assert type_of(device) == ""
    (where.parents[2] / "var/lib/firn-boot/formatting").rename(where.parents[2] / "kept")
    with pytest.raises(BootError, match="not empty"):  # nobody says that this was us
        mount(where, device)
    (where.parents[2] / "kept").rename(where.parents[2] / "var/lib/firn-boot/formatting")
    mount(where, device)
    assert type_of(device) == "ext4"
    assert where.is_mount()


def test_another_volume_where_the_data_belongs_is_refused(tmp_path: Path, where: Path, device: str) -> None:
    mount(where, device)
    (tmp_path / "other").mkdir()
    with volume(tmp_path / "other", 64) as other:
        with pytest.raises(BootError, match="something else"):
            mount(where, other)
        assert type_of(other) == ""
