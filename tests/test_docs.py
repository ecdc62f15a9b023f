"""Every command of README, docs and their like: programs, actions and options exist; blocks have their marks.

``tests/process/test_docs_commands.py`` runs them.
"""

from __future__ import annotations

import re

import pytest

from tests.support.doc_blocks import NOT_CHECKED, NOT_RUN, BadBlock, blocks, blocks_of, pages
from tests.support.doc_judging import findings, judge, judge_properties, judge_span, numbers, table
from tests.support.doc_programs import check
from tests.support.doc_shell import SUBSTITUTED, commands, typed
from tests.support.processes import REPOSITORY


def test_documents_name_no_command_option_or_setting_that_does_not_exist() -> None:
    assert "\n".join(map(str, findings())) == ""


def test_the_pages_are_those_that_a_user_reads() -> None:
    assert {"README.md", "docs/operations.md", "docs/spark.md", "localstack/README.md"} <= set(pages())
    assert sum(numbers(page).commands.total() for page in pages()) > 50
    assert "README.md" in table()


# -- marks


def fence(text: str, *, mark: str = "", language: str = "sh") -> str:
    return f"# Title\n\nSentence.\n\n{mark}\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        ("", ("", "")),
        ("<!-- not run: needs a cloud account -->", (NOT_RUN, "needs a cloud account")),
        ("<!-- not checked: of another\nproject -->", (NOT_CHECKED, "of another project")),
        ("<!-- something else -->", ("", "")),
    ],
)
def test_a_mark_says_what_is_done_with_the_block_below_it(mark: str, found: tuple[str, str]) -> None:
    (block,) = blocks_of("page.md", fence("firn topic list", mark=mark))
    assert (block.mark, block.reason) == found
    assert (block.text, block.heading) == ("firn topic list\n", "Title")


def test_a_mark_is_for_the_next_block_alone() -> None:
    text = fence("ls", mark="<!-- not run: of no use -->") + "\nAnd:\n\n```sh\nls\n```\n"
    assert [block.mark for block in blocks_of("page.md", text)] == [NOT_RUN, ""]


def test_a_block_in_a_list_has_its_mark_there() -> None:
    text = "1. Do:\n\n   <!-- not run: needs root -->\n   ```sh\n   ls\n   ```\n"
    (block,) = blocks_of("page.md", text)
    assert (block.mark, block.text) == (NOT_RUN, "ls\n")


@pytest.mark.parametrize(
    "text",
    [
        fence("ls", mark="<!-- not run -->"),
        fence("ls", mark="<!-- not run: -->"),
        fence("ls", mark="<!-- not checked: x -->"),
        fence("ls", language=""),
        "Sentence:\n\n    ls\n",
    ],
)
def test_a_mark_without_a_reason_or_a_block_without_a_language_is_refused(text: str) -> None:
    with pytest.raises(BadBlock):
        list(blocks_of("page.md", text))


def test_a_block_of_properties_is_not_marked_not_run() -> None:
    text = fence("node.id=1", mark="<!-- not run: some reason -->", language="properties")
    (block,) = blocks_of("page.md", text)
    assert [one.why for one in judge(block)] == ["is never run: mark it 'not checked', or not at all"]


def test_a_command_that_nobody_can_type_needs_a_mark() -> None:
    (block,) = blocks_of("page.md", fence("firn fsck s3://bucket/…"))
    assert [one.why for one in judge(block)] == ["nobody can run '…': write it out, or mark the block"]


# -- a shell's text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a b # c 'd\ne", [("a", "b"), ("e",)]),
        ("a \\\n  --b 'c d'", [("a", "--b", "c d")]),
        ("a | b && c; d", [("a",), ("b",), ("c",), ("d",)]),
        ("A=1 B='x y' a > file 2>&1", [("a",)]),
        ('a -t "$(b c)" d', [("b", "c"), ("a", "-t", SUBSTITUTED, "d")]),
        ("cat > f <<'END'\n{not a command}\nEND\nb", [("cat",), ("b",)]),
        ("for x in 1 2; do a $x; done", [("a", "$x")]),
        ("a User:b;c='d;e'", [("a", "User:b")]),
        ("a 'User:b;User:c'", [("a", "User:b;User:c")]),
        ("if a; then b; fi", [("a",), ("b",)]),
    ],
)
def test_commands_of_a_shell(text: str, found: list[tuple[str, ...]]) -> None:
    assert commands(text) == found


def test_quotes_that_do_not_end_are_refused() -> None:
    with pytest.raises(ValueError, match="quot"):
        commands("a 'b")


def test_only_what_is_typed_at_a_terminal_counts() -> None:
    assert typed("$ a \\\n    b\noutput\n$ c\n") == "a \\\n    b\nc\n"


# -- what is found


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("firn topic crate x", "'firn topic' has no action 'crate'"),
        ("firn topic list --frobnicate", "'firn topic list' has no option --frobnicate"),
        ("firn topic list --boot x", "'firn topic list' has no option --boot"),
        ("firn topic create", "the following arguments are required: TOPIC"),
        ("firn topic create x --partitions many", "expected a number above 0, found 'many'"),
        ("firn topic create x --config retention.mss=1", "retention.mss"),
        ("firn topic create x --config retention.ms=soon", "Not a number of type LONG"),
        ("firn server --set listener=x", "listener"),
        ("firn config set --topic x retention.mss=1", "retention.mss"),
        (".venv/bin/firn nothing", "nothing"),
        ("sudo -u firn /opt/bin/firn topic crate", "no action 'crate'"),
        ("docker compose exec node firn topic crate", "no action 'crate'"),
        ("make nothing", "make has no recipe nothing"),
        ("make sim SEEDS=1", "make has no variable SEEDS"),
        ("python3 -m service.nothing", "there is no program service.nothing"),
        ("python3 -m service.pipelines.stats --frobnicate", "has no option --frobnicate"),
        ("localstack/upp", "there is no localstack/upp"),
        ("localstack/up --frobnicate", "localstack/up has no option --frobnicate"),
        ("kafka-nothing.sh --list", "Apache Kafka 4.3.1 has no kafka-nothing"),
        ("kafka-topics --frobnicate", "kafka-topics has no option --frobnicate"),
        ("kafka-features upgradde", "kafka-features has no action upgradde"),
        ("pip install firn-log[spark]", "Firn is on no index"),
        ("nothing --at-all", "what is 'nothing'?"),
    ],
)
def test_a_wrong_command_is_found(command: str, why: str) -> None:
    assert why in (check(tuple(command.split())) or "")


@pytest.mark.parametrize(
    "command",
    [
        "firn topic create x --partitions 4 --config retention.ms=-1",
        "firn --version",
        "firn produce x --set linger.ms=5",
        "firn server --set listener.name.x.ssl.client.auth=required",
        "firn fsck $FIRN_URL",
        "sudo runuser -u firn -- /opt/firn/current/bin/firn random-uuid",
        "sudo systemctl restart firn",
        "make lint test",
        "make sim SEED=1",
        "python3 -m venv firn",
        "localstack/up --moto",
        "firn/bin/pip install dist/firn_log-0.1.0-cp311.whl[spark]",
        "pip install confluent-kafka",
        "kafka-topics.sh --bootstrap-server x:9092 --list",
        "kafka-features --bootstrap-server x:9092 upgrade --feature transaction.version=2",
    ],
)
def test_a_right_command_is_taken(command: str) -> None:
    assert check(tuple(command.split())) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("firn group describe GROUP", None),
        ("firn server [CONFIG.properties] [--set key=value …]", None),
        ("firn pipeline archive|audit", None),
        ("firn pipeline archive|audits", "'firn pipeline' has no action 'audits'"),
        ("firn COMMAND --help", None),
        ("firn acl … --topics", "'firn acl' has no option --topics"),
        ("firn fsck URL --json > FILE", None),
        ("kafka-configs … --entity-typ brokers", "kafka-configs has no option --entity-typ"),
        ("make bench…", None),
        ("log.dirs", None),
    ],
)
def test_a_command_within_a_sentence_is_judged_as_far_as_it_goes(text: str, why: str | None) -> None:
    assert judge_span(text) == why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("node.id=1\nlog.retention.ms=1000\n", None),
        ("node.id=1\nlog.retention.mss=1000\n", "log.retention.mss"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b\n", None),
        ("security.protocol=SASL_SSL\nsasl.user=a\n", "sasl.user"),
    ],
)
def test_properties_are_those_of_a_node_or_of_a_client(text: str, why: str | None) -> None:
    said = judge_properties(text)
    assert said is None if why is None else why in (said or "")


def test_texts_name_no_index_to_install_from() -> None:
    found = [
        str(path.relative_to(REPOSITORY))
        for folder in ("service", "pyspark_firn", "demo", "localstack", "infra", "docs")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in (".py", ".md", ".sh", ".tf") and "/adr/" not in str(path)
        if re.search(r"pip install (-\S+ )*['\"]?firn", path.read_text("utf-8"))
    ]
    assert found == []


def test_pages_are_read_once() -> None:
    assert blocks("README.md") is blocks("README.md")
