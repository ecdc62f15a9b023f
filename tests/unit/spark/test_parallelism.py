"""The number of tasks of a read, by the settings of a cluster."""

from __future__ import annotations

import os

import pytest

from service.spark.options import parse_options
from service.spark.parallelism import is_local, parallelism_of, promised_cores


def test_the_option_comes_first_and_the_cores_of_this_machine_last() -> None:
    given = {"url": "file:///x", "subscribe": "t"}
    assert parallelism_of(parse_options(given | {"parallelism": "800"})) == 800
    assert parallelism_of(parse_options(given)) == os.cpu_count()


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({}, 0),
        ({"spark.executor.instances": "4", "spark.executor.cores": "8"}, 32),
        ({"spark.executor.instances": "4"}, 4),
        ({"spark.executor.cores": "8"}, 0),
        ({"spark.cores.max": "48"}, 48),
        ({"spark.executor.instances": "8", "spark.executor.cores": "8", "spark.cores.max": "48"}, 48),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "4"}, 0),
    ],
)
def test_cores_that_settings_ask_for_count_before_they_have_come(
    settings: dict[str, str], cores: int
) -> None:
    assert promised_cores(settings.get) == cores


def test_only_a_local_master_runs_tasks_in_the_drivers_process() -> None:
    assert all(is_local(master) for master in ("local", "local[*]", "local[2]", "local[2,3]"))
    assert not any(is_local(master) for master in ("local-cluster[2,1,1024]", "spark://local:7077", "yarn"))
