"""What a test needs beyond Python. Missing, the test is skipped; in CI (CI=true) that is a failure."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY
from tests.support.stores import versitygw_binary

KAFKA_LIBS = Path(os.environ.get("KAFKA_LIBS", REPOSITORY / ".cache" / "kafka-4.3.1" / "libs"))


def _lacking(what: str, remedy: str = "`make fetch-tools` brings it") -> None:
    message = f"{what}: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def need_versitygw() -> None:
    if versitygw_binary() is None:
        _lacking("versitygw is not here")


def need_kafka_tools() -> None:
    if shutil.which("java") is None or not any(KAFKA_LIBS.glob("kafka-tools-*.jar")):
        _lacking("Apache Kafka's tools are not here")


def need_c_compiler() -> None:
    if sys.platform != "linux":
        pytest.skip("calls are intercepted by LD_PRELOAD, on Linux")
    if shutil.which("cc") is None:
        _lacking("there is no C compiler (cc)", "the system's packages bring it")
