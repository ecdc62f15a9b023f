"""One empty store of each kind; the servers behind them start once and only when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.backends import Backend, compared_backend, folder_backend, memory_backend, s3_backend
from tests.support.stores import moto_server, versitygw_server


@pytest.fixture(scope="session")
def moto_contract_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_server(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def versitygw_contract_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with versitygw_server(tmp_path_factory.mktemp("gateway")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def localstack_contract_endpoint() -> str:
    return os.environ["FIRN_LOCALSTACK"]


BACKENDS: list[Any] = [
    "memory",
    "compared",
    "folder",
    "moto",
    pytest.param("versitygw", marks=pytest.mark.versitygw),
]
# `make test-localstack` starts it.
LOCALSTACK = ["localstack"] if "FIRN_LOCALSTACK" in os.environ else []


@pytest.fixture(params=BACKENDS + LOCALSTACK)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory":
        return memory_backend()
    if request.param == "compared":
        return compared_backend()
    if request.param == "folder":
        return folder_backend(tmp_path / "bucket")
    return s3_backend(request.param, request.getfixturevalue(f"{request.param}_contract_endpoint"))
