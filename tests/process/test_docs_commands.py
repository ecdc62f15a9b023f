"""Commands of README and docs, run as they stand: page by page, in order, on a machine of their own.

`tests/process/scenes` has what each page takes for granted; ``tests/test_docs.py`` checks what is not run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doc_blocks import pages
from tests.support.doc_kafka_tools import told
from tests.support.doc_programs import kafka_tools
from tests.support.doc_stage import SPARK_PAGES, can_unshare, has_spark, perform, run_blocks
from tests.support.requirements import lacking, need_kafka_tools

IN_CI = ("docs/commands.md", "docs/from-kafka.md")
"""Pages that cost next to nothing; the others are `thorough`."""
PAGES = [
    pytest.param(page, marks=() if page in IN_CI else pytest.mark.thorough, id=page)
    for page in pages()
    if run_blocks(page)
]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_they_are_for(page: str, tmp_path: Path) -> None:
    if not can_unshare():
        lacking("a network of one's own is not allowed here", "`unshare --user --net` has to work")
    if page in SPARK_PAGES and not has_spark():
        lacking("Spark is not here", "`make spark` adds it")
    done = perform(page, tmp_path / "stage")
    assert done.code == 0, f"{done.last} ended with {done.code}:\n{done.output[-8000:]}"


def test_a_page_ends_at_the_first_command_that_fails_and_changes_nothing_outside(tmp_path: Path) -> None:
    if not can_unshare():
        lacking("a network of one's own is not allowed here", "`unshare --user --net` has to work")
    done = perform("tests/golden/docs/failing-page.md", tmp_path / "stage")
    assert (done.code, done.last) == (1, "tests/golden/docs/failing-page.md:14"), done.output
    assert not (tmp_path / "stage" / "too-far").exists()
    assert (tmp_path / "stage" / "over" / "etc" / "firn" / "file").read_text() == "kept\n"
    assert not Path("/etc/firn/file").exists()


@pytest.mark.java
@pytest.mark.thorough
def test_the_options_of_kafkas_tools_are_those_that_documents_are_compared_with() -> None:
    need_kafka_tools()
    assert kafka_tools() == told()
