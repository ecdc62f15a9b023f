"""One failure, on the disk or in the settings: what is lost by it, and what is not."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from errno import EIO, EMFILE, ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.hot.names import CLUSTER_METADATA_DIR
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.test_topics_and_configs import metadata
from tests.support.fault_disk import FaultDisk
from tests.support.processes import wait_until
from tests.support.world import make_world

Start = Callable[..., NodeThread]
NOW = 1_700_000_000_000


@pytest.fixture
def disk() -> FaultDisk:
    return FaultDisk()


def start_on(start: Start, disk: FaultDisk, **settings: str) -> NodeThread:
    return start(world=make_world(SystemClock(), disk), **settings)


def alter(talk: Talk, resource_type: int, name: str, **configs: str) -> Any:
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    changes = tuple(
        module.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in configs.items()
    )
    resource = module.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=changes)
    return talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigsRequest",
        resources=(resource,),
        validate_only=False,
    ).responses[0]


class TestSettings:
    def test_a_start_without_the_url_of_a_tiered_topic_is_refused(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "bucket").mkdir()
        url = f"file://{tmp_path}/bucket"
        node = start(firn_remote_url=url)
        with node.client() as client:
            talk = Talk(client)
            created = talk.create("precious", remote_storage_enable="true", retention_ms="-1")
            talk.produce_in_the_end(created.topic_id, [b"x"] * 10, 1000)
        node.stop()
        with pytest.raises(ConfigError, match=r"topic precious \(.*remote.storage.enable=true.*\): Tiered"):
            start(log_retention_ms="1", log_retention_check_interval_ms="10")
        with start(firn_remote_url=url).client() as client:
            answer = Talk(client).fetch(created.topic_id, 0)
            assert (answer.error_code, answer.high_watermark) == (0, 10)

    def test_a_broker_wide_change_that_a_topic_cannot_live_with_is_refused(
        self, start: Start, tmp_path: Path
    ) -> None:
        (tmp_path / "bucket").mkdir()
        with start(firn_remote_url=f"file://{tmp_path}/bucket").client() as client:
            talk = Talk(client)
            talk.create("precious", remote_storage_enable="true", local_retention_ms="5000")
            for broker in ("", "1"):
                answer = alter(talk, 4, broker, log_retention_ms="1000")
                assert answer.error_code == ErrorCode.invalid_request
                assert "topic precious" in answer.error_message
                assert "local.retention.ms" in answer.error_message
            assert alter(talk, 4, "", log_retention_ms="6000").error_code == 0


def is_online(talk: Talk, topic: str) -> bool:
    return not metadata(talk, topic)[0].partitions[1].offline_replicas


class TestPartitions:
    def test_a_partition_that_a_full_disk_refuses_is_offline_until_there_is_space(
        self, start: Start, disk: FaultDisk
    ) -> None:
        node = start_on(start, disk)
        with node.client() as client:
            talk = Talk(client)
            fine = talk.create("fine")
            topics = {}
            for call, code in (("mkdir", ENOSPC), ("open", EMFILE), ("pwrite", ENOSPC)):
                disk.fail(call, code, path=f"/refused-{call}-1")
                refused = topics[call] = talk.create(f"refused-{call}", 2)
                assert refused.error_code == 0, "it is in the metadata"
                assert talk.produce(refused.topic_id, [b"x"], NOW, 0).error_code == 0
                answer = talk.produce(refused.topic_id, [b"x"], NOW, 1)
                assert answer.error_code == ErrorCode.kafka_storage_error
                assert talk.fetch(refused.topic_id, 0, 1).error_code == ErrorCode.kafka_storage_error
                offline = [p.offline_replicas for p in metadata(talk, f"refused-{call}")[0].partitions]
                assert offline == [(), (1,)]
                assert talk.produce(fine.topic_id, [b"x"], NOW).error_code == 0
            disk.heal()
            for call, refused in topics.items():
                wait_until("the partition", partial(is_online, talk, f"refused-{call}"))
                assert talk.produce(refused.topic_id, [b"x"], NOW, 1).base_offset == 0
        assert node.failure is None

    def test_a_partition_that_is_offline_is_not_set_aside_and_can_be_deleted(
        self, start: Start, disk: FaultDisk, tmp_path: Path
    ) -> None:
        node = start_on(start, disk)
        with node.client() as client:
            talk = Talk(client)
            disk.fail("mkdir", ENOSPC, path="/refused-0")
            talk.create("refused")
            module = request_module(ApiKey.DELETE_TOPICS)
            topic = module.DeleteTopicState(name="refused", topic_id=None)
            answer = talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=(topic,), timeout=1000)
            assert answer.responses[0].error_code == 0
            disk.heal()
            again = talk.create("refused")
            assert talk.produce(again.topic_id, [b"x"], NOW).error_code == 0
        assert node.failure is None

    def test_a_topic_whose_files_cannot_be_renamed_is_deleted(self, start: Start, disk: FaultDisk) -> None:
        node = start_on(start, disk)
        with node.client() as client:
            talk = Talk(client)
            talk.create("doomed")
            fine = talk.create("fine")
            disk.fail("rename", EIO, path="/doomed-0")
            module = request_module(ApiKey.DELETE_TOPICS)
            topic = module.DeleteTopicState(name="doomed", topic_id=None)
            answer = talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=(topic,), timeout=1000)
            assert answer.responses[0].error_code == 0
            assert talk.produce(fine.topic_id, [b"x"], NOW).error_code == 0
        assert node.failure is None

    def test_topics_beyond_what_the_descriptors_carry_are_refused_with_the_number(self, start: Start) -> None:
        with start(open_files=256).client() as client:
            talk = Talk(client)
            assert talk.create("some", 40).error_code == 0
            refused = talk.create("more", 110)
            assert refused.error_code == ErrorCode.policy_violation
            assert "150 partitions" in refused.error_message
            assert "256 open files (RLIMIT_NOFILE) allow 144" in refused.error_message
            assert talk.create("few", 8).error_code == 0


class TestMetadata:
    def test_a_metadata_log_that_fails_ends_the_node_without_a_clean_mark(
        self, start: Start, disk: FaultDisk, tmp_path: Path
    ) -> None:
        node = start_on(start, disk)
        with node.client() as client:
            talk = Talk(client)
            created = talk.create("t")
            talk.produce(created.topic_id, [b"x"], NOW)
            disk.fail("fsync", EIO, path=CLUSTER_METADATA_DIR)
            with contextlib.suppress(OSError, StorageError):  # the connection ends with the node
                talk.create("lost")
        wait_until("the node to end", lambda: not node._thread.is_alive())
        assert isinstance(node.failure, StorageError)
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        disk.heal()
        with start_on(start, disk).client() as client:
            talk = Talk(client)
            assert talk.fetch(created.topic_id, 0).high_watermark == 1

    def test_lost_metadata_does_not_restart_over_existing_partitions(
        self, start: Start, tmp_path: Path
    ) -> None:
        node = start()
        with node.client() as client:
            talk = Talk(client)
            created = talk.create("t")
            talk.produce(created.topic_id, [b"x"], NOW)
        node.stop()
        directory = tmp_path / "data" / CLUSTER_METADATA_DIR
        kept = directory.rename(tmp_path / "kept")
        with pytest.raises(CorruptionError, match=r"lost or empty, and .* holds 1 partitions, t-0"):
            start()
        assert (tmp_path / "data" / "t-0").is_dir()
        shutil.rmtree(directory, ignore_errors=True)
        kept.rename(directory)
        with start().client() as client:
            assert Talk(client).fetch(created.topic_id, 0).high_watermark == 1
