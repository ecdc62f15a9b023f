"""Manual pages below the options in `--help`: examples, exit codes, environment. [P]

One page for each command and each of its actions; a test compares the table with the commands.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from service.cli.manual_clusters import CLUSTER_PAGES
from service.cli.manual_page import (
    AWS,
    CONFIGURATION,
    NODE,
    OPERATIONS,
    PIPELINES,
    QUOTAS,
    SECURITY,
    TRANSACTIONS,
    WRONG,
    ManualPage,
)

WIDTH: Final = 80

PAGES: Final[Mapping[str, ManualPage]] = MappingProxyType(
    {
        "firn": ManualPage(
            (
                ("firn dev", "a node with an S3 of its own, to try things out"),
                ("firn server server.properties", "a node"),
                ("firn topic create flights --config remote.storage.enable=true", "a tiered topic"),
                ("firn tiers flights", "the tiers of its records"),
                ('eval "$(firn completion bash)"', "complete words with the Tab key"),
            ),
            {0: "done", 1: "an error: see stderr", 2: "a wrong command line", 130: "ended by Ctrl-C"},
            see="README.md and docs/",
        ),
        "firn server": ManualPage(
            (
                ("firn server", "a node on 127.0.0.1:9092, data in ./firn-data"),
                ("firn server /etc/firn/server.properties", "settings from a file"),
                ("firn server --set firn.remote.url=s3://bucket/prefix", "with a cold tier"),
                ("firn server --set firn.http.listener=:9464", "with metrics and health over HTTP"),
            ),
            NODE,
            AWS,
            "docs/configuration.md for settings, docs/operations.md for operation",
        ),
        "firn format": ManualPage(
            (
                (
                    "firn format -c server.properties -t 4L6g3nShT-eMCtK--X86sw",
                    "a node whose settings name the voters; use the same id on all nodes",
                ),
                (
                    "firn format -s -c server.properties -t 4L6g3nShT-eMCtK--X86sw"
                    " --restore restore.checkpoint",
                    "the first node of a cluster that comes back",
                ),
                (
                    "firn format -c server.properties -t 4L6g3nShT-eMCtK--X86sw -s",
                    "a quorum of one that others can join",
                ),
                (
                    "firn format -c server.properties -t 4L6g3nShT-eMCtK--X86sw -N",
                    "a node that joins it",
                ),
            ),
            see="docs/operations.md",
        ),
        "firn random-uuid": ManualPage((("firn random-uuid", "an id for a cluster or a directory"),)),
        "firn dev": ManualPage(
            (
                ("firn dev", "a node on 127.0.0.1:9092 and an S3 on a free port"),
                ("firn dev --port 0 --set log.segment.bytes=1048576", "a free port, small segments"),
            ),
            NODE,
            see="localstack/README.md for a local cloud that outlives the shell",
        ),
        "firn console": ManualPage(
            (
                ("firn console", "the cluster of this machine, on http://127.0.0.1:8080"),
                ("firn console --bootstrap node-1:9092 --url s3://bucket/prefix", "another one"),
                ("firn console --host 0.0.0.0 --token-file /etc/firn/console.token", "for others, too"),
            ),
            {0: "ended by SIGTERM, SIGINT or SIGHUP", 1: "could not start: stderr says why"},
            AWS,
            "docs/console.md",
        ),
        "firn top": ManualPage(
            (
                ("firn top", "the node of this machine"),
                ("firn top --url http://node-1:9464 --every 5", "another one, every five seconds"),
                ("firn top --json | jq .metrics", "once, for programs"),
            ),
            see="docs/metrics.md",
        ),
        "firn config": ManualPage(
            (("firn config explain server.properties", "what becomes of each key of a file"),),
            see=CONFIGURATION,
        ),
        "firn config explain": ManualPage(
            (
                ("firn config explain server.properties", "each key, its effect here, its default"),
                ("firn config explain server.properties --json | jq .keys", "for programs"),
            ),
            {0: "a node would take the file", 1: "something in it is refused"},
            see=CONFIGURATION,
        ),
        "firn transaction": ManualPage(
            (
                ("firn transaction list", "all transactional ids and their states"),
                ("firn transaction hanging", "transactions that nobody will end"),
            ),
            see=TRANSACTIONS,
        ),
        "firn transaction list": ManualPage(
            (
                ("firn transaction list --state Ongoing", "those that are open"),
                ("firn transaction list --longer-than-ms 60000", "open for more than a minute"),
                ("firn transaction list --pattern 'billing-.*' --json", "by name, for programs"),
            ),
            {0: "done", 1: "a node did not answer: see stderr; the ids of the others are listed"},
            see=TRANSACTIONS,
        ),
        "firn transaction describe": ManualPage(
            (("firn transaction describe billing-7", "producer, state, since when, partitions"),),
            see=TRANSACTIONS,
        ),
        "firn transaction hanging": ManualPage(
            (
                ("firn transaction hanging", "in all partitions"),
                ("firn transaction hanging --topic flights --partition 3", "in one"),
                ("firn transaction hanging --older-than-ms 0", "however young"),
            ),
            {0: "none hangs", 1: "some hang, or could not be looked for: see stderr"},
            see=TRANSACTIONS,
        ),
        "firn transaction abort": ManualPage(
            (
                (
                    "firn transaction abort --topic flights --partition 3 --start-offset 1042",
                    "as 'hanging' lists it",
                ),
            ),
            see=TRANSACTIONS,
        ),
        "firn transaction terminate": ManualPage(
            (("firn transaction terminate billing-7", "abort it, and fence its producer"),),
            see=TRANSACTIONS,
        ),
        "firn acl": ManualPage((("firn acl list", "all entries"),), see=SECURITY),
        "firn acl list": ManualPage(
            (
                ("firn acl list --command-config admin.properties", "all entries"),
                ("firn acl list --principal User:alice", "what is said about alice"),
                ("firn acl list --topic orders --resource-pattern-type match", "what counts for a topic"),
                ("firn acl list --json | jq -r .[].principal", "for programs"),
            ),
            see=SECURITY,
        ),
        "firn acl add": ManualPage(
            (
                ("firn acl add --allow-principal User:alice --producer --topic orders", "alice may write"),
                (
                    "firn acl add --allow-principal User:bob --consumer --topic orders- --group reports "
                    "--resource-pattern-type prefixed",
                    "bob may read topics and use groups whose names begin so",
                ),
                (
                    "firn acl add --deny-principal User:mallory --topic '*'",
                    "nothing on any topic, whatever else is allowed",
                ),
                (
                    "firn acl add --allow-principal User:ops --operation Describe --cluster",
                    "rights on the cluster",
                ),
            ),
            {0: "all of them are there now", 1: "some were refused, or an error: see stderr"},
            see=SECURITY,
        ),
        "firn acl remove": ManualPage(
            (
                (
                    "firn acl remove --allow-principal User:alice --producer --topic orders",
                    "what 'add' with these options added",
                ),
                ("firn acl remove --topic orders --dry-run", "print all entries of a topic"),
                ("firn acl remove --topic orders", "remove them"),
            ),
            {0: "removed", 1: "there was nothing to remove, or an error: see stderr"},
            see=SECURITY,
        ),
        "firn user": ManualPage((("firn user list", "users with SCRAM credentials"),), see=SECURITY),
        "firn user list": ManualPage((("firn user list --json | jq -r .[].user", "names, one a line"),)),
        "firn user add": ManualPage(
            (
                ("firn user add alice", "asks for the password"),
                ("firn user add alice --password @/etc/firn/alice.password", "from a file"),
                ("pass show alice | firn user add alice --mechanism SCRAM-SHA-256", "from a program"),
            ),
            see=SECURITY,
        ),
        "firn user remove": ManualPage(
            (
                ("firn user remove alice", "no login any more; 'sessions --end' ends what is open"),
                ("firn user remove alice --mechanism SCRAM-SHA-256", "one of the credentials"),
            ),
            {0: "removed", 1: "there is no such credential, or an error: see stderr"},
            see=SECURITY,
        ),
        "firn user sessions": ManualPage(
            (
                ("firn user sessions", "who is logged in, from where, for how long idle"),
                ("firn user sessions alice --json", "of one user, for programs"),
                ("firn user sessions --end alice", "close them; who may, logs in again"),
                ("firn user sessions --end CN=billing,O=Acme", "of a certificate"),
            ),
            {0: "done at all nodes", 1: "a node did not answer, or does not know this request: see stderr"},
            see=SECURITY,
        ),
        "firn quota": ManualPage((("firn quota list", "all quotas"),), see=QUOTAS),
        "firn quota list": ManualPage(
            (
                ("firn quota list", "all quotas"),
                ("firn quota list --user alice --json", "those that name alice, for programs"),
            ),
            see=QUOTAS,
        ),
        "firn quota set": ManualPage(
            (
                ("firn quota set producer_byte_rate=10485760 --user alice", "10 MiB a second to each broker"),
                (
                    "firn quota set request_percentage=50 --default-user --client reports",
                    "for each user's client of this id",
                ),
                ("firn quota set connection_creation_rate=20 --default-ip", "for each address"),
            ),
            see=QUOTAS,
        ),
        "firn quota remove": ManualPage(
            (
                ("firn quota remove producer_byte_rate --user alice", "one of them"),
                ("firn quota remove --user alice", "all of alice's own"),
            ),
            {0: "removed", 1: "there is no such quota, or an error: see stderr"},
            see=QUOTAS,
        ),
        "firn tiers": ManualPage(
            (
                ("firn tiers flights", "the current state"),
                ("firn tiers flights --watch", "repeated every second"),
                ("firn tiers flights --url s3://bucket/prefix", "if the broker does not tell its URL"),
            ),
            environment=AWS,
        ),
        "firn dump": ManualPage(
            (
                ("firn dump firn-data/flights-0/00000000000000000000.log --records", "batches and records"),
                (
                    "firn dump firn-data/__consumer_offsets-7/00000000000000000000.log --records",
                    "offsets, groups and members",
                ),
                (
                    "firn dump firn-data/__transaction_state-3/00000000000000000000.log --records",
                    "transactional ids",
                ),
                ("firn dump s3://bucket/prefix/cluster.json", "an object"),
                ("firn dump firn-data/__cluster_metadata-0/00000000000000000000.log", "the metadata log"),
            ),
            environment=AWS,
            see="docs/bucket-format.md",
        ),
        "firn fsck": ManualPage(
            (
                ("firn fsck s3://bucket/prefix", "everything, every batch"),
                ("firn fsck s3://bucket/prefix --shallow --threads 16", "footers only, faster"),
                ("firn fsck s3://bucket/prefix --topic flights --json", "one topic, for programs"),
            ),
            WRONG,
            AWS,
            OPERATIONS,
        ),
        "firn sweep": ManualPage(
            (
                ("firn sweep s3://bucket/prefix", "list them"),
                ("firn sweep s3://bucket/prefix --delete", "delete them, and abort unfinished uploads"),
            ),
            environment=AWS,
            see=OPERATIONS,
        ),
        "firn rewrite": ManualPage(
            (
                (
                    "firn rewrite --url s3://bucket/prefix --bootstrap-server broker:9092",
                    "what it would merge",
                ),
                (
                    "firn rewrite --url s3://bucket/prefix --topics 'clicks.*' --execute",
                    "merge small objects of some topics",
                ),
            ),
            environment=AWS,
            see="docs/design/rewriting.md",
        ),
        "firn repair": ManualPage(
            (
                ("firn repair s3://bucket/prefix", "print what is wrong, and the repairs"),
                ("firn repair s3://bucket/prefix --write", "repair it: stop the node first"),
            ),
            {0: "nothing is wrong, or all of it was repaired", 1: "something is wrong and was not repaired"},
            AWS,
            OPERATIONS,
        ),
        "firn restore": ManualPage(
            (("firn restore plan --from s3://bucket/prefix", "what would come back?"),), see=OPERATIONS
        ),
        "firn restore plan": ManualPage(
            (
                ("firn restore plan --from s3://bucket/prefix", "from the newest cut"),
                (
                    "firn restore plan --from s3://bucket/prefix --at 2026-01-31T12:00:00Z",
                    "from an older one",
                ),
                ("firn restore plan --from s3://bucket/prefix --json", "for programs"),
            ),
            {0: "it can be restored", 1: "it cannot, or some of its archive cannot be read"},
            AWS,
            OPERATIONS,
        ),
        "firn restore apply": ManualPage(
            (
                (
                    "firn restore apply --from s3://bucket/prefix --take-over --brokers 1,2,3"
                    " -o restore.checkpoint",
                    "the prefix is the new cluster's from now on",
                ),
                (
                    "firn restore apply --from s3://bucket/prefix --to s3://bucket/copy --brokers 1"
                    " -o restore.checkpoint",
                    "a copy beside it, for one node",
                ),
            ),
            {0: "the file is written", 1: "refused, or cut off: the same command goes on"},
            AWS,
            OPERATIONS,
        ),
        "firn restore status": ManualPage(
            (
                ("firn restore status", "what still loads?"),
                (
                    "firn restore status --bootstrap-server node-1:9092 --json",
                    "of another cluster, for programs",
                ),
            ),
            {0: "all of it is served", 1: "something loads, cannot be loaded, or is not known"},
            see=OPERATIONS,
        ),
        "firn bucket": ManualPage((("firn bucket check s3://bucket/prefix", "is it fit?"),), see=OPERATIONS),
        "firn bucket check": ManualPage(
            (
                ("firn bucket check s3://bucket/prefix", "with the node's credentials"),
                ("firn bucket check s3://bucket --endpoint http://127.0.0.1:9000", "another S3 server"),
                ("firn bucket check file:///mnt/archive --json", "a folder, for programs"),
            ),
            {0: "the store is fit", 1: "it is not, or a permission is missing"},
            AWS,
            OPERATIONS,
        ),
        "firn bucket create": ManualPage(
            (
                ("firn bucket create s3://bucket --region eu-west-1", "encrypted by S3's own keys"),
                (
                    "firn bucket create s3://bucket --kms-key arn:aws:kms:eu-west-1:123456789012:key/…",
                    "encrypted by your own key",
                ),
            ),
            {0: "created as recommended", 1: "it exists, cannot be created, or lacks a setting: see stderr"},
            AWS,
            OPERATIONS,
        ),
        "firn bucket policy": ManualPage(
            (
                ("firn bucket policy s3://bucket/prefix > policy.json", "for the role of the node's machine"),
                (
                    "aws iam put-role-policy --role-name firn --policy-name archive "
                    "--policy-document file://policy.json",
                    "attach it to the role",
                ),
            ),
            see=OPERATIONS,
        ),
        "firn pipeline": ManualPage(
            (("firn pipeline stats s3://bucket/prefix", "its content in numbers"),),
            environment=AWS,
            see=PIPELINES,
        ),
        "firn pipeline archive": ManualPage(
            (
                (
                    "firn pipeline archive s3://bucket/prefix s3a://lake/flights --topics flights "
                    "--values json",
                    "as Parquet, new records with each run",
                ),
            ),
            environment=AWS,
            see=PIPELINES,
        ),
        "firn pipeline audit": ManualPage(
            (("firn pipeline audit s3://bucket/prefix", "every batch of every topic"),),
            WRONG,
            AWS,
            PIPELINES,
        ),
        "firn pipeline erase": ManualPage(
            (
                (
                    "firn pipeline erase s3://bucket/prefix 0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b "
                    "--bootstrap-server 127.0.0.1:9092",
                    "what an order has to do in the bucket, on all cores",
                ),
            ),
            WRONG,
            AWS,
            PIPELINES,
        ),
        "firn pipeline replay": ManualPage(
            (
                (
                    "firn pipeline replay s3://bucket/prefix --topics flights --from 2013-02-01 "
                    "--to 2013-03-01 --bootstrap-server 127.0.0.1:9092 --into again --state replay",
                    "a month again",
                ),
            ),
            environment=AWS,
            see=PIPELINES,
        ),
        "firn pipeline stats": ManualPage(
            (
                (
                    "firn pipeline stats s3://bucket/prefix --topics flights --plot flights.png",
                    "with a picture",
                ),
            ),
            environment=AWS,
            see=PIPELINES,
        ),
        "firn pyfiles": ManualPage(
            (
                ("firn pyfiles firn.zip", "the package"),
                ("spark-submit --py-files firn.zip job.py", "a job that reads an archive with it"),
            ),
            see="docs/spark-clusters.md",
        ),
        "firn completion": ManualPage(
            (
                ("""echo 'eval "$(firn completion bash)"' >> ~/.bashrc""", "bash, from the next shell on"),
                ("firn completion zsh > ~/.zfunc/_firn", "zsh, in a folder of its fpath"),
                ("firn completion fish > ~/.config/fish/completions/firn.fish", "fish"),
            )
        ),
        **CLUSTER_PAGES,
    }
)


class ManualFormatter(argparse.HelpFormatter):
    """Formatter that keeps line breaks in text that has some, and fills other text as usual."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "".join(indent + line for line in text.splitlines(keepends=True))


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and all shown parsers below it."""
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


def text_of(page: ManualPage) -> str:
    """Return the page as it appears below the options."""
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
