"""Requirements of tests beyond Python. Missing, the test is skipped; in CI (CI=true) that is a failure."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY
from tests.support.stores import versitygw_binary

KAFKA_LIBS = Path(os.environ.get("KAFKA_LIBS", REPOSITORY / ".cache" / "kafka-4.3.1" / "libs"))
KAFKA_APPS = Path(os.environ.get("KAFKA_APPS", REPOSITORY / ".cache" / "kafka-apps-4.3.1" / "libs"))
KAFKA_TIERED = Path(os.environ.get("KAFKA_TIERED", REPOSITORY / ".cache" / "kafka-tiered-4.3.1" / "libs"))


def lacking(what: str, remedy: str = "`make fetch-tools` brings it") -> None:
    message = f"{what}: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def need_versitygw() -> None:
    if versitygw_binary() is None:
        lacking("versitygw is not here")


def need_schemas() -> None:
    """Return if the extra `schemas` is installed."""
    for name in ("authlib", "httpx2", "fastavro", "google.protobuf", "grpc_tools"):
        try:
            is_here = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            is_here = False
        if not is_here:
            lacking(f"{name} is not here", "`make install` brings it")


def has_kafka_tools() -> bool:
    return shutil.which("java") is not None and any(KAFKA_LIBS.glob("kafka-tools-*.jar"))


def need_kafka_tools() -> None:
    if not has_kafka_tools():
        lacking("Apache Kafka's tools are not here")


def need_kafka_apps() -> None:
    """Streams, Connect's connectors and MirrorMaker."""
    need_kafka_tools()
    if not any(KAFKA_APPS.glob("kafka-streams-*.jar")):
        lacking("the jars of Kafka Streams and Connect are not here")


def streams_tests() -> str:
    """The class path of Kafka Streams' own tests, StreamsSmokeTest among them; of a Maven repository, too."""
    need_kafka_apps()
    maven = Path.home() / ".m2" / "repository" / "org" / "apache" / "kafka"
    found = []
    for name in ("kafka-streams", "kafka-clients"):
        jars = [jar for folder in (KAFKA_APPS, maven) for jar in folder.rglob(f"{name}-4.3.1-test.jar")]
        if not jars:
            lacking(
                f"the tests of {name} are not here", "remove .cache/kafka-apps-*, then `make fetch-tools`"
            )
        found.append(str(jars[0]))
    return ":".join(found)


def has_javac() -> bool:
    """Return whether programs of tests/java/clients can be compiled and run."""
    return has_kafka_tools() and shutil.which("javac") is not None


def need_javac() -> None:
    need_kafka_tools()
    if shutil.which("javac") is None:
        lacking(
            "there is no Java compiler (javac)", "the system's packages bring it, say openjdk-17-jdk-headless"
        )


def need_c_compiler() -> None:
    if sys.platform != "linux":
        pytest.skip("calls are intercepted by LD_PRELOAD, on Linux")
    if shutil.which("cc") is None:
        lacking("there is no C compiler (cc)", "the system's packages bring it")


def promtool() -> Path:
    """Prometheus' own judge of rules."""
    path = Path(os.environ.get("FIRN_PROMTOOL", REPOSITORY / ".cache" / "promtool-v0.313.5" / "promtool"))
    if not path.is_file():
        lacking("promtool is not here")
    return path


def need_localstack() -> None:
    if not (REPOSITORY / ".cache" / "localstack" / ".complete").is_file():
        lacking("LocalStack is not here", "`localstack/install` brings it")


def python_called(name: str) -> str:
    """The path of another Python."""
    found = subprocess.run(
        [REPOSITORY / ".ci" / "find-python", name], capture_output=True, text=True, check=False
    )
    if found.returncode:
        lacking(f"{name} is not here", "install it, or a version manager's copy of it")
    return found.stdout.strip()


def chromium() -> str | None:
    """A Chromium without a screen: `FIRN_CHROMIUM`, or the system's."""
    names = (os.environ.get("FIRN_CHROMIUM", ""), "chromium-headless-shell", "chromium", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def need_browser() -> str:
    """The browser's path."""
    if importlib.util.find_spec("playwright") is None:
        lacking("playwright is not here", "make install brings it")
    path = chromium()
    if path is None:
        lacking("there is no Chromium", "apt-get install chromium-headless-shell brings it")
    assert path is not None
    return path


def need_re2() -> None:
    if importlib.util.find_spec("re2") is None:
        lacking("google-re2 is not here", "`make install` brings it")
