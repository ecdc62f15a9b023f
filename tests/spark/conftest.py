"""A real Spark, and buckets that a real node filled before it was ended."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.filling import Filled, fill
from tests.spark.growing import Growing, growing
from tests.support.spark import connector_jars
from tests.support.stores import CREDENTIALS, Store, folder_store, new_bucket


class _WithoutSpark(pytest.Module):
    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("pyspark is not installed: make spark", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip the tests of this folder where Spark is not installed, before one of them imports it."""
    if importlib.util.find_spec("pyspark") is not None:
        return None
    return _WithoutSpark.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two cores, a small driver, UTC. Workers inherit the credentials of the tests' S3 servers, and the place
    of shared ones (`shared_credentials`).
    """
    from pyspark_firn import session

    with pytest.MonkeyPatch.context() as patch:
        for key, value in CREDENTIALS.items():
            patch.setenv(key, value)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path_factory.mktemp("aws") / "credentials"))
        found = session(
            "tests",
            master="local[2]",
            config={
                "spark.driver.memory": "1g",
                "spark.jars": connector_jars(),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.session.timeZone": "UTC",
                "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            },
        )
        found.sparkContext.setLogLevel("OFF")
        yield found
        found.stop()


@pytest.fixture
def shared_credentials(spark: Any) -> Path:
    """The file of profiles that Spark's workers read, for a test to write."""
    return Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"])


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A folder with the cold part of several topics; the node is gone. Not to be changed."""
    folder = tmp_path_factory.mktemp("filled")
    return fill(folder / "node", folder_store(folder / "cold"))


@pytest.fixture(scope="session")
def filled_s3(moto_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The same on an S3 server."""
    store = new_bucket(moto_endpoint, f"spark-{os.getpid()}")
    return fill(tmp_path_factory.mktemp("filled-s3") / "node", store)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    """A running node of its own for each module, without topics; a module may have one with some."""
    with growing(tmp_path_factory.mktemp("growing")) as found:
        yield found


@pytest.fixture
def load(spark: Any, filled: Filled) -> Callable[..., Any]:
    """`load(schema=None, **options)`: a DataFrame of the folder."""

    def load(schema: str | None = None, **options: object) -> Any:
        return read(spark, filled.store, schema, **options)

    return load


def read(spark: Any, store: Store, schema: str | None = None, **options: object) -> Any:
    """A DataFrame of `store`."""
    reader = spark.read.format("firn").option("url", store.url)
    if store.endpoint is not None:
        reader = reader.option("endpoint", store.endpoint)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader.schema(schema) if schema is not None else reader).load()
