"""docs/versions.md says what the software does."""

from __future__ import annotations

import re
import tomllib

from service.metadata.features import METADATA_VERSION_LEVEL
from service.metadata.records import FIRST_OWN_ID
from service.remote.format.documents import FORMAT_VERSION
from service.remote.format.manifest_codec import LAYOUT_VERSION
from tests.support.processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "versions.md").read_text("utf-8")
ROWS = {row[1].strip(): row[2] for row in re.finditer(r"^\| ([^|]+)\| ([^|]+)\|", PAGE, re.MULTILINE)}


def test_the_numbers_of_the_table_are_those_of_the_code() -> None:
    assert ROWS["the bucket"].strip().endswith(f": {LAYOUT_VERSION}")
    assert LAYOUT_VERSION == FORMAT_VERSION
    assert f": {METADATA_VERSION_LEVEL} " in ROWS["the metadata log"]
    assert f"{FIRST_OWN_ID:,}" in ROWS["Firn's own metadata records"]


def test_the_pythons_are_those_that_the_package_takes() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert "3.11 to 3.13" in ROWS["Python"]
