"""What `--help` says of a command beyond its options: examples, exit codes, environment. [P]

One page for each command and each of its actions; a test holds the table to the commands that there are.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

WIDTH: Final = 80


class Page(NamedTuple):
    """The end of one command's help. `examples` are (command, what it does)."""

    examples: tuple[tuple[str, str], ...]
    exits: Mapping[int, str] = MappingProxyType({0: "done", 1: "an error, said on stderr"})
    environment: Mapping[str, str] = MappingProxyType({})
    see: str = ""


_AWS: Final = MappingProxyType(
    {
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN": "credentials for S3",
        "AWS_PROFILE": "a profile of ~/.aws instead; without either, the machine's role",
        "AWS_REGION": "the bucket's region",
        "AWS_ENDPOINT_URL": "another S3 server than AWS",
        "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME": "and what else gs:// and az:// take",
    }
)
_WRONG: Final = MappingProxyType({0: "nothing is wrong", 1: "something is, or could not be looked at"})
_NODE: Final = MappingProxyType(
    {0: "ended by SIGTERM or SIGINT", 1: "could not start, or failed while it ran: the log says why"}
)
_PIPELINES: Final = "docs/pipelines.md"
_OPERATIONS: Final = "docs/operations.md"
_CLUSTERS: Final = "docs/operations.md, Clusters"

PAGES: Final[Mapping[str, Page]] = MappingProxyType(
    {
        "firn": Page(
            (
                ("firn dev", "a node with an S3 of its own, to try things out"),
                ("firn server server.properties", "a node"),
                ("firn topic create flights --config remote.storage.enable=true", "a tiered topic"),
                ("firn tiers flights", "where its records lie"),
                ('eval "$(firn completion bash)"', "complete these words with the Tab key"),
            ),
            {0: "done", 1: "an error, said on stderr", 2: "a wrong command line", 130: "ended by Ctrl-C"},
            see="README.md and docs/",
        ),
        "firn server": Page(
            (
                ("firn server", "a node on 127.0.0.1:9092, data in ./firn-data"),
                ("firn server /etc/firn/server.properties", "settings from a file"),
                ("firn server --set firn.remote.url=s3://bucket/prefix", "with a cold tier"),
                ("firn server --set firn.http.listener=:9464", "with metrics and health over HTTP"),
            ),
            _NODE,
            _AWS,
            "docs/configuration.md has every setting, docs/operations.md how it is run",
        ),
        "firn format": Page(
            (
                (
                    "firn format -c server.properties -t 4L6g3nShT-eMCtK--X86sw",
                    "a node whose settings name the voters, with an id that all nodes get",
                ),
                (
                    "firn format -c server.properties -t 4L6g3nShT-eMCtK--X86sw -s",
                    "a quorum of one that can be grown",
                ),
                (
                    "firn format -c server.properties -t 4L6g3nShT-eMCtK--X86sw -N",
                    "a node that joins it",
                ),
            ),
            see="docs/operations.md",
        ),
        "firn random-uuid": Page((("firn random-uuid", "an id for a cluster or a directory"),)),
        "firn dev": Page(
            (
                ("firn dev", "a node on 127.0.0.1:9092 and an S3 on a free port"),
                ("firn dev --port 0 --set log.segment.bytes=1048576", "a free port, small segments"),
            ),
            _NODE,
            see="localstack/README.md for a local cloud that goes on when the shell ends",
        ),
        "firn console": Page(
            (
                ("firn console", "the cluster of this machine, on http://127.0.0.1:8080"),
                ("firn console --bootstrap node-1:9092 --url s3://bucket/prefix", "another one"),
                ("firn console --host 0.0.0.0 --token-file /etc/firn/console.token", "for others, too"),
            ),
            {0: "ended by SIGTERM or SIGINT", 1: "could not start: stderr says why"},
            _AWS,
            "docs/console.md",
        ),
        "firn top": Page(
            (
                ("firn top", "the node of this machine"),
                ("firn top --url http://node-1:9464 --every 5", "another one, every five seconds"),
                ("firn top --json | jq .metrics", "once, for programs"),
            ),
            see="docs/metrics.md",
        ),
        "firn cluster": Page((("firn cluster describe", "how it stands"),), see=_CLUSTERS),
        "firn cluster describe": Page(
            (
                ("firn cluster describe", "nodes, quorum, brokers, what is not whole, what moves"),
                ("firn cluster describe --format json | jq .wrong", "what somebody should look at"),
                ("firn cluster describe --bootstrap-controller a:9093", "where no broker is left"),
            ),
            {
                0: "nothing is wrong",
                1: "something is (its lines begin with wrong:), or could not be asked",
            },
            see=_CLUSTERS,
        ),
        "firn cluster repair-internal": Page(
            (
                ("firn cluster repair-internal --dry-run", "what would be done"),
                ("firn cluster repair-internal", "it is done, ten partitions at a time"),
            ),
            {
                0: "all have their replicas; with --dry-run, or could be given them",
                1: "some lack them, or it could not be done: stderr says why",
            },
            see=_CLUSTERS,
        ),
        "firn topic": Page((("firn topic list", "what there is"),)),
        "firn topic create": Page(
            (
                ("firn topic create flights --partitions 4", "on local disks alone"),
                (
                    "firn topic create flights --config remote.storage.enable=true "
                    "--config local.retention.ms=3600000",
                    "tiered: an hour on disk, the rest in the bucket",
                ),
            ),
            see="docs/configuration.md, Topics",
        ),
        "firn topic list": Page((("firn topic list --json | jq -r .[].name", "names, one a line"),)),
        "firn topic describe": Page((("firn topic describe flights", "id, settings, partitions"),)),
        "firn topic settings-known": Page(
            (("firn topic settings-known flights", "its retention works again after a recovery"),),
            see="docs/operations.md, Taking a prefix over",
        ),
        "firn topic delete": Page(
            (("firn topic delete flights", "and its archive, once the grace is over"),),
            see="docs/operations.md, The cold tier",
        ),
        "firn group": Page((("firn group list", "all groups, their protocol and state"),)),
        "firn group list": Page((("firn group list --json | jq -r .[].group_id", "ids, one a line"),)),
        "firn group describe": Page(
            (
                ("firn group describe billing", "members, what each has, lag by partition"),
                ("firn group describe billing --json | jq .lag", "records that wait, all together"),
            ),
            see="docs/operations.md, Consumer groups",
        ),
        "firn tiers": Page(
            (
                ("firn tiers flights", "one look"),
                ("firn tiers flights --watch", "see it settle"),
                ("firn tiers flights --url s3://bucket/prefix", "where the broker does not say its URL"),
            ),
            environment=_AWS,
        ),
        "firn dump": Page(
            (
                ("firn dump firn-data/flights-0/00000000000000000000.log --records", "batches and records"),
                (
                    "firn dump firn-data/__consumer_offsets-7/00000000000000000000.log --records",
                    "offsets, groups and members",
                ),
                ("firn dump s3://bucket/prefix/cluster.json", "an object"),
                ("firn dump firn-data/__cluster_metadata-0/00000000000000000000.log", "the metadata log"),
            ),
            environment=_AWS,
            see="docs/bucket-format.md",
        ),
        "firn fsck": Page(
            (
                ("firn fsck s3://bucket/prefix", "everything, every batch"),
                ("firn fsck s3://bucket/prefix --shallow --threads 16", "footers alone, and faster"),
                ("firn fsck s3://bucket/prefix --topic flights --json", "one topic, for programs"),
            ),
            _WRONG,
            _AWS,
            _OPERATIONS,
        ),
        "firn sweep": Page(
            (
                ("firn sweep s3://bucket/prefix", "what would go"),
                ("firn sweep s3://bucket/prefix --delete", "it goes"),
            ),
            environment=_AWS,
            see=_OPERATIONS,
        ),
        "firn repair": Page(
            (
                ("firn repair s3://bucket/prefix", "what is wrong, and what would be done"),
                ("firn repair s3://bucket/prefix --write", "it is done: stop the node first"),
            ),
            {0: "nothing is wrong, or all of it was repaired", 1: "something is wrong and was not repaired"},
            _AWS,
            _OPERATIONS,
        ),
        "firn bucket": Page((("firn bucket check s3://bucket/prefix", "will it do?"),), see=_OPERATIONS),
        "firn bucket check": Page(
            (
                ("firn bucket check s3://bucket/prefix", "with the credentials that a node would have"),
                ("firn bucket check s3://bucket --endpoint http://127.0.0.1:9000", "another S3 server"),
                ("firn bucket check file:///mnt/archive --json", "a folder, for programs"),
            ),
            {0: "the store will do", 1: "it will not, or a permission is missing"},
            _AWS,
            _OPERATIONS,
        ),
        "firn bucket create": Page(
            (
                ("firn bucket create s3://bucket --region eu-west-1", "encrypted by S3's own keys"),
                (
                    "firn bucket create s3://bucket --kms-key arn:aws:kms:eu-west-1:123456789012:key/…",
                    "by a key of yours",
                ),
            ),
            {0: "made as recommended", 1: "it exists, cannot be made, or lacks a setting: stderr says which"},
            _AWS,
            _OPERATIONS,
        ),
        "firn bucket policy": Page(
            (
                ("firn bucket policy s3://bucket/prefix > policy.json", "for the role of the node's machine"),
                (
                    "aws iam put-role-policy --role-name firn --policy-name archive "
                    "--policy-document file://policy.json",
                    "and so it is given",
                ),
            ),
            see=_OPERATIONS,
        ),
        "firn pipeline": Page(
            (("firn pipeline stats s3://bucket/prefix", "what is in there"),),
            environment=_AWS,
            see=_PIPELINES,
        ),
        "firn pipeline archive": Page(
            (
                (
                    "firn pipeline archive s3://bucket/prefix s3a://lake/flights --topics flights "
                    "--values json",
                    "as Parquet, new records with each run",
                ),
            ),
            environment=_AWS,
            see=_PIPELINES,
        ),
        "firn pipeline audit": Page(
            (("firn pipeline audit s3://bucket/prefix", "every batch of every topic"),),
            _WRONG,
            _AWS,
            _PIPELINES,
        ),
        "firn pipeline replay": Page(
            (
                (
                    "firn pipeline replay s3://bucket/prefix --topics flights --from 2013-02-01 "
                    "--to 2013-03-01 --bootstrap-server 127.0.0.1:9092 --into again --state replay",
                    "a month, once more",
                ),
            ),
            environment=_AWS,
            see=_PIPELINES,
        ),
        "firn pipeline stats": Page(
            (
                (
                    "firn pipeline stats s3://bucket/prefix --topics flights --plot flights.png",
                    "with a picture",
                ),
            ),
            environment=_AWS,
            see=_PIPELINES,
        ),
        "firn pyfiles": Page(
            (
                ("firn pyfiles firn.zip", "the package"),
                ("spark-submit --py-files firn.zip job.py", "and a job that reads an archive with it"),
            ),
            see="docs/spark-clusters.md",
        ),
        "firn completion": Page(
            (
                ("""echo 'eval "$(firn completion bash)"' >> ~/.bashrc""", "bash, from the next shell on"),
                ("firn completion zsh > ~/.zfunc/_firn", "zsh, in a folder of its fpath"),
                ("firn completion fish > ~/.config/fish/completions/firn.fish", "fish"),
            )
        ),
    }
)


class ManualFormatter(argparse.HelpFormatter):
    """Text with line breaks of its own keeps them; the rest is filled as ever."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "".join(indent + line for line in text.splitlines(keepends=True))


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all below it that are shown."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            for name, below in action.choices.items():
                if name in shown:
                    yield from commands(below)


def add_pages(parser: argparse.ArgumentParser) -> None:
    """Give each command its page."""
    for one in commands(parser):
        one.formatter_class = ManualFormatter
        if (page := PAGES.get(one.prog)) is not None:
            one.epilog = text_of(page)


def text_of(page: Page) -> str:
    """The page as it stands below the options."""
    parts = ["examples:"]
    for command, what in page.examples:
        parts += [f"  {command}", f"      {what}"]
    parts += ["", "exit codes:", *(f"  {code:<4} {what}" for code, what in page.exits.items())]
    if page.environment:
        parts += ["", "environment:"]
        for name, what in page.environment.items():
            parts += [
                f"  {name}",
                *textwrap.wrap(what, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6),
            ]
    if page.see:
        parts += ["", f"see: {page.see}"]
    return "\n".join(parts)
