"""Directories are formatted as the node's settings say, whole or not at all, and never over something."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.config.cluster import ClusterConfig
from service.hot.log_dir import LogDir, decode_uuid, encode_uuid, read_meta
from service.hot.meta_properties_ensemble import load_ensemble
from service.metadata.batches import decode_batches
from service.metadata.bootstrap import (
    FILE_NAME,
    InitialController,
    decode_bootstrap,
    encode_bootstrap,
    feature_frames,
    levels_of,
    parse_initial_controllers,
    read_bootstrap,
)
from service.metadata.formatting import (
    FIRST_SNAPSHOT,
    Order,
    SelfFormatting,
    check_formatted,
    check_metadata_place,
    effective_levels,
    format_directories,
    release_level,
    self_formatting,
)
from service.metadata.frames import Frame, UnknownRecord
from service.metadata.image import FeatureRange
from service.metadata.raft.snapshots import list_snapshots, read_snapshot
from tests.support.fault_disk import FaultDisk
from tests.support.world import WORLD, make_world

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
FEATURES = (
    FeatureRange("eligible.leader.replicas.version", 0, 1),
    FeatureRange("firn.catalog.version", 0, 1),
    FeatureRange("kraft.version", 0, 1),
    FeatureRange("metadata.version", 30, 30),
)
LEVELS = {
    "eligible.leader.replicas.version": 1,
    "firn.catalog.version": 1,
    "kraft.version": 0,
    "metadata.version": 30,
}
OWN = UUID(int=7 << 64)
CONTROLLERS = (InitialController(1, "a", 9093, OWN), InitialController(2, "b", 9093, UUID(int=8 << 64)))
THREE = "1@a:9093,2@b:9093,3@c:9093"
OF_THREE = {
    "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
    "controller.listener.names": "CONTROLLER",
}


def order(folder: Path, controllers: tuple[InitialController, ...] = (), ignore: bool = False) -> Order:
    return Order(
        CLUSTER_ID,
        1,
        (folder / "a", folder / "m"),
        folder / "m",
        "CONTROLLER",
        {**LEVELS, "kraft.version": 1 if controllers else 0},
        controllers,
        ignore,
    )


def formatted(folder: Path, controllers: tuple[InitialController, ...] = (), ignore: bool = False) -> str:
    said: list[str] = []
    format_directories(WORLD, order(folder, controllers, ignore), said.append)
    return "\n".join(said)


def control_types(path: Path) -> list[int]:
    return [one.control_type for batch in decode_batches(path.read_bytes()) for one in batch.control]


class TestFormatting:
    def test_a_static_node_gets_its_ids_and_what_a_log_begins_with(self, tmp_path: Path) -> None:
        said = formatted(tmp_path)
        assert f"Formatting data directory {tmp_path}/a with metadata.version 4.3-IV0." in said
        assert f"Formatting metadata directory {tmp_path}/m with metadata.version 4.3-IV0." in said
        ids = set()
        for path in (tmp_path / "a", tmp_path / "m"):
            meta = read_meta(WORLD.disk, path)
            assert meta is not None
            assert meta[:2] == (CLUSTER_ID, 1)
            ids.add(meta.directory_id)
            frames = read_bootstrap(WORLD.disk, path)
            assert frames is not None
            assert levels_of(frames) == {n: v for n, v in LEVELS.items() if n != "kraft.version"}
        assert len(ids) == 2
        assert not (tmp_path / "m" / "__cluster_metadata-0").exists()

    def test_a_voter_of_a_dynamic_quorum_has_the_directory_id_that_all_know_it_by(
        self, tmp_path: Path
    ) -> None:
        assert f"dynamic metadata voter directory {tmp_path}/m" in formatted(tmp_path, CONTROLLERS)
        metas = {name: read_meta(WORLD.disk, tmp_path / name) for name in "am"}
        assert metas["m"] is not None
        assert metas["m"].directory_id == OWN
        assert metas["a"] is not None
        assert metas["a"].directory_id != OWN
        log = tmp_path / "m" / "__cluster_metadata-0"
        assert list_snapshots(WORLD.disk, log) == [FIRST_SNAPSHOT]
        assert list(read_snapshot(WORLD.disk, log, FIRST_SNAPSHOT))
        assert control_types(log / FIRST_SNAPSHOT.file_name) == [3, 5, 6, 4]
        assert not (tmp_path / "a" / "__cluster_metadata-0").exists()

    def test_a_node_that_is_not_an_initial_controller_gets_its_own_directory_id(self, tmp_path: Path) -> None:
        assert f"dynamic metadata directory {tmp_path}/m" in formatted(tmp_path, CONTROLLERS[1:])
        meta = read_meta(WORLD.disk, tmp_path / "m")
        assert meta is not None
        assert meta.directory_id not in {one.directory_id for one in CONTROLLERS}

    def test_formatted_directories_are_skipped_only_with_ignore_formatted(self, tmp_path: Path) -> None:
        formatted(tmp_path)
        before = read_meta(WORLD.disk, tmp_path / "m")
        with pytest.raises(ConfigError, match=r"/a is already formatted. Use --ignore-formatted"):
            formatted(tmp_path)
        assert formatted(tmp_path, ignore=True) == "All of the log directories are already formatted."
        shutil.rmtree(tmp_path / "a")
        assert "Formatting data directory" in formatted(tmp_path, ignore=True)
        assert read_meta(WORLD.disk, tmp_path / "m") == before

    def test_directories_of_another_cluster_are_refused_unchanged(self, tmp_path: Path) -> None:
        other = Order("AAAAAAAAAAAAAAAAAAAAAg", 2, (tmp_path / "a",), tmp_path / "a", "", LEVELS)
        format_directories(WORLD, other, lambda _: None)
        with pytest.raises(ConfigError, match=r"Invalid cluster.id"):
            formatted(tmp_path, ignore=True)
        assert not (tmp_path / "m").exists()

    def test_a_damaged_data_directory_is_left_and_a_damaged_metadata_directory_refused(
        self, tmp_path: Path
    ) -> None:
        formatted(tmp_path)
        shutil.rmtree(tmp_path / "m")
        (tmp_path / "a" / "meta.properties").write_text("version=7\n")
        assert f"I/O error trying to read log directory {tmp_path}/a. Ignoring..." in formatted(tmp_path)
        (tmp_path / "m" / "meta.properties").write_text("version=7\n")
        with pytest.raises(StorageError, match=r"m/meta.properties is invalid"):
            formatted(tmp_path, ignore=True)

    def test_data_without_an_identity_is_not_given_a_new_one(self, tmp_path: Path) -> None:
        log = tmp_path / "m" / "__cluster_metadata-0"
        log.mkdir(parents=True)
        (log / "00000000000000000000.log").write_bytes(b"")
        with pytest.raises(ConfigError, match=r"holds __cluster_metadata-0 but no meta.properties"):
            formatted(tmp_path)
        assert not (tmp_path / "a").exists()
        shutil.rmtree(log)
        (tmp_path / "m" / "flights-3").mkdir()
        with pytest.raises(ConfigError, match="holds flights-3"):
            formatted(tmp_path)

    def test_a_directory_in_use_is_not_formatted(self, tmp_path: Path) -> None:
        held = LogDir(tmp_path / "a", WORLD)
        with pytest.raises(StorageError, match="is in use"):
            formatted(tmp_path)
        held.close()
        formatted(tmp_path)

    @pytest.mark.parametrize("controllers", [(), CONTROLLERS], ids=["static", "dynamic"])
    def test_formatting_can_be_repeated_after_any_failure(
        self, tmp_path: Path, controllers: tuple[InitialController, ...]
    ) -> None:
        """Each call of the disk fails once; a directory that counts as formatted then is whole."""
        number, ended = 0, False
        while not ended:
            folder = tmp_path / str(number)
            folder.mkdir()
            disk = FaultDisk()
            fault = disk.fail("*", errno.EIO, after=number, times=1)
            with contextlib.suppress(StorageError):
                format_directories(make_world(disk=disk), order(folder, controllers), lambda _: None)
            ended = not fault.hits
            found = load_ensemble(WORLD.disk, order(folder).directories)
            for path in found.formatted:
                assert read_bootstrap(WORLD.disk, path) is not None
                if controllers and path.name == "m":
                    assert control_types(path / "__cluster_metadata-0" / FIRST_SNAPSHOT.file_name)[-1] == 4
            formatted(folder, controllers, ignore=True)
            assert len(load_ensemble(WORLD.disk, order(folder).directories).formatted) == 2
            number += 1
        assert number > 40

    def test_static_formatting_removes_the_snapshot_of_dynamic_voters(self, tmp_path: Path) -> None:
        formatted(tmp_path, CONTROLLERS)
        for name in "am":
            (tmp_path / name / "meta.properties").unlink()
        formatted(tmp_path)
        assert list((tmp_path / "m" / "__cluster_metadata-0").iterdir()) == []


class TestLevels:
    def test_a_new_cluster_begins_with_the_newest(self) -> None:
        assert effective_levels({}, FEATURES, is_dynamic=False) == LEVELS
        assert effective_levels({}, FEATURES, is_dynamic=True) == {**LEVELS, "kraft.version": 1}

    def test_a_feature_gets_the_requested_level(self) -> None:
        asked = {"firn.catalog.version": 0, "metadata.version": 30, "kraft.version": 1}
        levels = effective_levels(asked, FEATURES, is_dynamic=True)
        assert levels == {**LEVELS, **asked}
        assert levels_of(feature_frames(levels)) == {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
        }

    @pytest.mark.parametrize(
        ("asked", "is_dynamic", "message"),
        [
            (
                {"foo": 1},
                False,
                "Unsupported feature: foo. Supported features are: eligible.leader.replicas.version, "
                "firn.catalog.version, kraft.version",
            ),
            ({"metadata.version": 29}, False, "No feature:metadata.version with feature level 29"),
            ({"firn.catalog.version": 2}, False, "No feature:firn.catalog.version with feature level 2"),
            ({"kraft.version": 2}, True, "No feature:kraft.version with feature level 2"),
            (
                {"kraft.version": 0},
                True,
                "Cannot set kraft.version to 0 if controller.quorum.voters is empty",
            ),
            ({"kraft.version": 1}, False, "Cannot set kraft.version to 1 unless controller.quorum.voters is"),
        ],
    )
    def test_impossible_feature_levels_are_refused(
        self, asked: dict[str, int], is_dynamic: bool, message: str
    ) -> None:
        with pytest.raises(ConfigError) as raised:
            effective_levels(asked, FEATURES, is_dynamic=is_dynamic)
        assert str(raised.value).startswith(message)

    def test_supported_releases_are_those_whose_records_are_written(self) -> None:
        assert release_level("4.3") == release_level("4.3-IV0") == release_level("4.3.1") == 30
        for other in ("4.2", "4.30", "3.9-IV0", ""):
            with pytest.raises(ConfigError, match=r"only 4.3"):
                release_level(other)


class TestInitialControllers:
    def test_initial_controllers_are_parsed_and_printed_alike(self) -> None:
        text = "1@a.example:9093:JEXY6aqzQY-32P5TStzaFg,3@[::1]:9095:MvDxzVmcRsaTz33bUuRU6A"
        read = parse_initial_controllers(f" {text},")
        assert ",".join(map(str, read)) == text
        assert read[1][:3] == (3, "::1", 9095)
        assert encode_uuid(read[0].directory_id) == "JEXY6aqzQY-32P5TStzaFg"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "No voters given."),
            ("a:9093", "No @ found in dynamic voter string."),
            ("x@a:9093:JEXY6aqzQY-32P5TStzaFg", "Failed to parse node id"),
            ("-1@a:9093:JEXY6aqzQY-32P5TStzaFg", "Failed to parse node id"),
            ("2147483648@a:9093:JEXY6aqzQY-32P5TStzaFg", "Failed to parse node id"),
            ("1@", "No colon following hostname could be found."),
            ("1@:9093:JEXY6aqzQY-32P5TStzaFg", "No hostname found after node id."),
            ("1@[::1:9093", "Hostname began with left bracket, but no right bracket was found."),
            ("1@[::1]9093", "Port section must start with a colon."),
            ("1@a:9093", "No colon following port could be found."),
            ("1@a:0:JEXY6aqzQY-32P5TStzaFg", "Invalid port 0 in dynamic voter string."),
            ("1@a:65536:JEXY6aqzQY-32P5TStzaFg", "Invalid port 65536 in dynamic voter string."),
            ("1@a:9093:", "Failed to parse directory ID in dynamic voter string"),
            ("1@a:9093:JEXY6aqzQY-32P5TStza", "Failed to parse directory ID in dynamic voter string"),
            ("1@a:9093:AAAAAAAAAAAAAAAAAAAAAQ", "Invalid reserved directory ID AAAAAAAAAAAAAAAAAAAAAQ"),
            (
                "1@a:1:JEXY6aqzQY-32P5TStzaFg,1@b:1:MvDxzVmcRsaTz33bUuRU6A",
                "Node id 1 was specified more than once.",
            ),
            (
                "1@a:1:JEXY6aqzQY-32P5TStzaFg,2@b:1:JEXY6aqzQY-32P5TStzaFg",
                "Directory ID JEXY6aqzQY-32P5TStzaFg was specified for node 1 and for node 2.",
            ),
        ],
    )
    def test_malformed_initial_controllers_are_refused(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            parse_initial_controllers(text)
        assert str(raised.value).startswith(message)


class TestBootstrapFile:
    def test_damage_is_found_wherever_it_is(self) -> None:
        data = encode_bootstrap(feature_frames(LEVELS), 1_700_000_000_000)
        assert levels_of(decode_bootstrap(data)) == {n: v for n, v in LEVELS.items() if v}
        for end in range(len(data)):
            with pytest.raises(CorruptionError):
                decode_bootstrap(data[:end])
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 0x10
            try:
                frames = decode_bootstrap(flipped)
            except CorruptionError:
                continue
            # offset and epoch of a batch lie outside its checksum, and mean nothing here
            assert frames == decode_bootstrap(data), position

    def test_a_bootstrap_without_a_known_metadata_version_is_refused(self) -> None:
        other = feature_frames({"metadata.version": 30, "group.version": 1})[1:]
        with pytest.raises(CorruptionError, match=r"No FeatureLevelRecord for metadata.version"):
            decode_bootstrap(encode_bootstrap(other, 0))
        unknown = Frame(UnknownRecord(99, b"\0"), 0)
        with pytest.raises(CorruptionError, match="unknown type 99"):
            decode_bootstrap(encode_bootstrap([*feature_frames(LEVELS), unknown], 0))

    def test_a_directory_may_not_say(self, tmp_path: Path) -> None:
        assert read_bootstrap(WORLD.disk, tmp_path) is None
        (tmp_path / FILE_NAME).write_bytes(b"x" * 99)
        with pytest.raises(CorruptionError, match=FILE_NAME):
            read_bootstrap(WORLD.disk, tmp_path)


class TestWhoMayDoWithout:
    @pytest.mark.parametrize(
        ("properties", "expected"),
        [
            ({}, SelfFormatting.AT_ONCE),
            ({**OF_THREE, "controller.quorum.voters": "1@a:9093"}, SelfFormatting.AT_ONCE),
            (
                {
                    "process.roles": "controller",
                    "listeners": "CONTROLLER://a:9093",
                    "controller.listener.names": "CONTROLLER",
                    "controller.quorum.voters": "1@a:9093",
                },
                SelfFormatting.AT_ONCE,
            ),
            ({**OF_THREE, "controller.quorum.voters": THREE}, SelfFormatting.NEVER),
            ({**OF_THREE, "controller.quorum.bootstrap.servers": "a:9093"}, SelfFormatting.NEVER),
            (
                {
                    "process.roles": "broker",
                    "node.id": "11",
                    "controller.listener.names": "CONTROLLER",
                    "controller.quorum.voters": THREE,
                },
                SelfFormatting.BY_THE_QUORUM,
            ),
        ],
    )
    def test_only_a_node_that_cannot_have_voted_formats_itself(
        self, tmp_path: Path, properties: dict[str, str], expected: SelfFormatting
    ) -> None:
        cluster = ClusterConfig.from_properties({**properties, "log.dirs": str(tmp_path / "data")})
        assert self_formatting(cluster) is expected
        nothing = load_ensemble(WORLD.disk, cluster.directories)
        if expected is SelfFormatting.NEVER:
            with pytest.raises(ConfigError, match="format it by `firn format"):
                check_formatted(cluster, nothing)
        else:
            check_formatted(cluster, nothing)

    @pytest.mark.parametrize(
        ("server", "words"),
        [
            ("localhost:9093", "`firn format -s -c FILE -t ID` first"),
            ("127.0.0.1:9093", "the only controller that its settings name"),
            ("localhost:9094", "this node is one of several controllers"),
            ("other:9093", "this node is one of several controllers"),
            ("localhost:9093,other:9093", "this node is one of several controllers"),
        ],
    )
    def test_a_node_that_names_only_itself_is_told_how_to_begin(
        self, tmp_path: Path, server: str, words: str
    ) -> None:
        shipped = {
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": server,
            "log.dirs": str(tmp_path / "data"),
        }
        cluster = ClusterConfig.from_properties(shipped)
        with pytest.raises(ConfigError, match=words):
            check_formatted(cluster, load_ensemble(WORLD.disk, cluster.directories))

    def test_a_voter_that_was_formatted_may_start(self, tmp_path: Path) -> None:
        cluster = ClusterConfig.from_properties(
            {
                **OF_THREE,
                "controller.quorum.voters": THREE,
                "log.dirs": str(tmp_path / "a"),
                "metadata.log.dir": str(tmp_path / "m"),
            }
        )
        formatted(tmp_path)
        check_formatted(cluster, load_ensemble(WORLD.disk, cluster.directories))
        shutil.rmtree(tmp_path / "a")  # a new disk for data: nothing that was promised is lost
        check_formatted(cluster, load_ensemble(WORLD.disk, cluster.directories))
        shutil.rmtree(tmp_path / "m")
        with pytest.raises(ConfigError, match=f"No `meta.properties` found in {tmp_path}/m"):
            check_formatted(cluster, load_ensemble(WORLD.disk, cluster.directories))

    def test_directories_of_another_node_and_unreadable_ones_are_refused(self, tmp_path: Path) -> None:
        formatted(tmp_path)
        places = {"log.dirs": str(tmp_path / "a"), "metadata.log.dir": str(tmp_path / "m")}
        second = ClusterConfig.from_properties({**places, "node.id": "2"})
        with pytest.raises(ConfigError, match="Stored node id 1 doesn't match previous node id 2"):
            check_formatted(second, load_ensemble(WORLD.disk, second.directories))
        first = ClusterConfig.from_properties(places)
        (tmp_path / "m" / "meta.properties").write_text("version=1\n")
        with pytest.raises(StorageError, match=r"m/meta.properties"):
            check_formatted(first, load_ensemble(WORLD.disk, first.directories))

    def test_an_existing_metadata_log_elsewhere_is_not_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "a" / "__cluster_metadata-0").mkdir(parents=True)
        places = {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"}
        check_metadata_place(WORLD.disk, ClusterConfig.from_properties(places))
        moved = ClusterConfig.from_properties({**places, "metadata.log.dir": str(tmp_path / "m")})
        with pytest.raises(ConfigError, match="Found unexpected metadata location"):
            check_metadata_place(WORLD.disk, moved)
        assert decode_uuid(encode_uuid(OWN)) == OWN
