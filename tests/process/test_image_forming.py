"""The image's entry point: which empty volumes it formats, and which it takes for lost."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from deploy.image.firn_image import __main__ as entry
from deploy.image.firn_image import forming
from deploy.image.firn_image.told import directory_id, told_by, voters_of
from service.base.errors import ConfigError
from service.remote.stores.errors import StoreUnavailable
from tests.support.processes import free_port

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
OTHER = "Zmlybi1vbi1jb21wb3NlMQ"


class Place:
    """Three nodes' settings, a folder for each one's volume, and a folder of marks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.ports = {node: free_port() for node in (1, 2, 3)}

    def volume(self, node: int) -> Path:
        return self.folder / f"volume-{node}" / "data"

    def environ(self, node: int, **more: str) -> dict[str, str]:
        places = {one: f"127.0.0.1:{port}" for one, port in self.ports.items()}
        return {
            "FIRN_NODE_ID": str(node),
            "FIRN_LOG_DIRS": str(self.volume(node)),
            "FIRN_LISTENERS": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://{places.get(node, '127.0.0.1:1')}",
            "FIRN_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "FIRN_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": ",".join(places.values()),
            "FIRN_CLUSTER_ID": CLUSTER,
            "FIRN_IMAGE_FORM": f"file://{self.marks}",
            "FIRN_IMAGE_VOTERS": ",".join(f"{one}@{place}" for one, place in places.items()),
            **more,
        }

    def start(self, node: int, **more: str) -> None:
        forming.prepare_volume(None, (), self.environ(node, **more))

    def meta(self, node: int) -> dict[str, str]:
        lines = (self.volume(node) / "meta.properties").read_text("utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_empty_volume_is_refused_unless_the_environment_says_otherwise(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"data is empty: no meta\.properties.*FIRN_IMAGE_FORM"):
        place.start(1, FIRN_IMAGE_FORM="")
    assert not place.volume(1).exists()


def test_a_cluster_is_not_formed_without_its_id(place: Place) -> None:
    environ = place.environ(1)
    del environ["FIRN_CLUSTER_ID"]
    with pytest.raises(ConfigError, match="FIRN_CLUSTER_ID is not"):
        forming.prepare_volume(None, (), environ)


def test_first_voters_agree_on_each_others_directories(place: Place) -> None:
    for node in (1, 2, 3):
        place.start(node)
    assert [place.meta(node)["directory.id"] for node in (1, 2, 3)] == [
        directory_id(CLUSTER, node) for node in (1, 2, 3)
    ]
    logs = [place.volume(node) / "__cluster_metadata-0" for node in (1, 2, 3)]
    assert [[path.name for path in log.iterdir()] for log in logs] == [
        ["00000000000000000000-0000000000.checkpoint"]
    ] * 3
    said = place.marks / CLUSTER
    assert {path.name for path in said.iterdir()} == {"voters", "1", "2", "3"}
    assert (said / "voters").read_text() == voters_of(place.environ(1)["FIRN_IMAGE_VOTERS"], CLUSTER)


def test_a_volume_with_its_data_is_left_as_it_is(place: Place) -> None:
    place.start(1)
    before = place.meta(1)
    for _ in range(2):
        place.start(1)
    assert place.meta(1) == before


def test_a_lost_volume_is_refused(place: Place) -> None:
    place.start(1)
    shutil.rmtree(place.volume(1))
    with pytest.raises(ConfigError, match="the node was formed before"):
        place.start(1)
    assert not (place.volume(1) / "meta.properties").exists()


def test_a_lost_voters_place_is_taken_by_one_that_never_voted(place: Place) -> None:
    place.start(1)
    shutil.rmtree(place.volume(1))
    place.start(1, FIRN_IMAGE_REPLACE="3,1")
    assert place.meta(1)["directory.id"] != directory_id(CLUSTER, 1)
    assert not (place.volume(1) / "__cluster_metadata-0").exists()


def test_forming_goes_on_after_a_power_cut(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(forming, "run_format", off)
        with pytest.raises(KeyboardInterrupt):
            place.start(1)
    place.start(1)
    assert place.meta(1)["node.id"] == "1"
    assert not (place.volume(1) / ".forming").exists()


def test_a_note_goes_also_when_the_power_went_after_formatting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(forming, "forget", lambda *_: None)
        place.start(1)
    assert (place.volume(1) / ".forming").exists()
    place.start(1)
    assert not (place.volume(1) / ".forming").exists()


def test_other_first_voters_than_before_are_refused(place: Place) -> None:
    place.start(1)
    with pytest.raises(ConfigError, match="voters of FIRN_IMAGE_FORM says"):
        place.start(2, FIRN_IMAGE_VOTERS=f"2@127.0.0.1:{place.ports[2]}")


def test_a_controller_that_comes_later_votes_only_once_it_was_added(place: Place) -> None:
    place.start(4)
    assert not (place.volume(4) / "__cluster_metadata-0").exists()
    assert (place.marks / CLUSTER / "4").exists()


def test_a_broker_is_formed_once_too(place: Place) -> None:
    settings = {"FIRN_PROCESS_ROLES": "broker", "FIRN_LISTENERS": "PLAINTEXT://127.0.0.1:0"}
    place.start(7, **settings)
    assert place.meta(7)["cluster.id"] == CLUSTER
    shutil.rmtree(place.volume(7))
    with pytest.raises(ConfigError, match="the node was formed before"):
        place.start(7, **settings)
    place.start(7, FIRN_IMAGE_REPLACE="7", **settings)
    assert place.meta(7)["node.id"] == "7"


def test_a_store_that_does_not_answer_keeps_an_empty_volume_empty(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        def put_if_absent(self, key: str, data: bytes) -> bool:
            raise StoreUnavailable("away")

        def get(self, key: str, *, max_size: int) -> bytes:
            raise StoreUnavailable("away")

    monkeypatch.setattr(forming, "marks", lambda *_: Away())
    with pytest.raises(ConfigError, match="an empty volume is not formatted without it"):
        place.start(1)
    assert not (place.volume(1) / "meta.properties").exists()


def test_a_node_with_its_data_starts_while_the_store_is_away_and_is_noted_later(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.start(1, FIRN_IMAGE_FORM="unguarded")

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(forming, "marks", away)
        place.start(1)
        assert "asked again at the next start" in capsys.readouterr().err
    place.start(1)
    assert json.loads((place.marks / CLUSTER / "1").read_text())["node"] == 1
    shutil.rmtree(place.volume(1))
    with pytest.raises(ConfigError, match="the node was formed before"):
        place.start(1)


def test_a_volume_of_another_node_says_nothing_of_this_one(place: Place) -> None:
    """Started as node 2 by mistake it is refused by `firn`, and node 2 may be formed all the same."""
    place.start(1, FIRN_IMAGE_FORM="unguarded")
    volume = place.volume(1)
    place.start(2, FIRN_LOG_DIRS=str(volume))
    assert not (place.marks / CLUSTER / "2").exists()
    place.start(2)
    assert place.meta(2)["node.id"] == "2"


def test_a_volume_of_another_cluster_is_no_empty_one(place: Place) -> None:
    place.start(1)
    place.start(1, FIRN_CLUSTER_ID=OTHER)  # the node itself refuses it, with its own words
    assert place.meta(1)["cluster.id"] == CLUSTER


def test_a_users_first_password_comes_from_a_file(place: Place, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    user = f"SCRAM-SHA-512=[name=admin,password=@{tmp_path}/password]"
    place.start(1, FIRN_IMAGE_ADD_SCRAM=user)
    assert b"admin" in (place.volume(1) / "bootstrap.checkpoint").read_bytes()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FIRN_IMAGE_FORM", "yes", "neither unguarded nor a URL"),
        ("FIRN_IMAGE_FROM", "s3://b/formed", "there is no such variable"),
        ("FIRN_IMAGE_REPLACE", "1,x", "'x' is no node's id"),
    ],
)
def test_words_that_mean_nothing_are_refused(variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        told_by({variable: value})


def test_voters_keep_the_directory_ids_that_they_are_given() -> None:
    given = f"1@a:9093:{OTHER}, 2@b:9093"
    assert voters_of(given, CLUSTER) == f"1@a:9093:{OTHER},2@b:9093:{directory_id(CLUSTER, 2)}"
    with pytest.raises(ConfigError, match="is not ID@HOST:PORT"):
        voters_of("a:9093", CLUSTER)


def test_settings_of_the_image_give_way_to_a_file_and_to_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://:9999\n")
    words = entry.with_file(["server", "--log-level", "debug"], file)
    assert words == ["server", str(file), "--log-level", "debug"]
    environ = entry.with_defaults(words, {"FIRN_HTTP_LISTENER": ":1"})
    assert environ == {"FIRN_HTTP_LISTENER": ":1", "FIRN_LOG_DIRS": "/var/lib/firn/data"}
    assert entry.with_file(["server", "mine.properties"], file) == ["server", "mine.properties"]
    assert entry.with_defaults(["server"], {"FIRN_LOG_DIR": "/data"}).keys() == {
        "FIRN_LOG_DIR",
        "FIRN_LISTENERS",
        "FIRN_HTTP_LISTENER",
    }


def test_a_folder_in_the_place_of_the_mounted_file_is_not_passed_over(tmp_path: Path) -> None:
    """Docker makes a folder where there is no file to mount: a node without its settings may be open."""
    folder = tmp_path / "server.properties"
    folder.mkdir()
    words = entry.with_file(["server"], folder)
    with pytest.raises(ConfigError, match=r"server\.properties: Is a directory"):
        entry.with_defaults(words, {})
    link = tmp_path / "away.properties"
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="No such file"):
        entry.with_defaults(entry.with_file(["server"], link), {})
    assert entry.with_file(["server"], tmp_path / "none" / "x") == ["server"]
    assert entry.with_file(["server"], tmp_path / "none") == ["server"]


def test_a_volume_of_somebody_else_is_refused_with_the_user_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object) -> None:
        raise ConfigError("making /var/lib/firn/data: Permission denied")

    monkeypatch.setattr(entry, "prepare", denied)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["firn_image"])
    assert entry.main() == 1
    said = capsys.readouterr().err
    assert (
        f"data: Permission denied (for user {os.geteuid()} of group {os.getegid()}: docs/containers.md"
        in said
    )
