"""Manual pages of what is asked of a running cluster: topics, groups, settings, brokers, erasures. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from service.cli.manual_page import CHANGED, CLUSTERS, COMMANDS, ERASURE, ManualPage

CLUSTER_PAGES: Final[Mapping[str, ManualPage]] = MappingProxyType(
    {
        "firn config get": ManualPage(
            (
                ("firn config get --topic flights", "what is not as by default, and where it is set"),
                ("firn config get --broker 1 log.retention.ms num.partitions", "these of a broker"),
                ("firn config get --broker-logger 1", "levels of its loggers"),
                ("firn config get --group billing --all --json | jq .", "for programs"),
            ),
            see="docs/configuration.md",
        ),
        "firn config set": ManualPage(
            (
                ("firn config set --topic flights retention.ms=86400000", "kept for a day"),
                ("firn config set --broker-defaults log.cleaner.threads=2", "on all brokers"),
                ("firn config set --topic flights --append cleanup.policy=compact", "of a list"),
                ("firn config set --broker-logger 1 service.tiering=DEBUG", "until it is restarted"),
                ("firn config set --broker 1 --file secrets.properties", "not in the shell's history"),
            ),
            see="docs/configuration.md",
        ),
        "firn config unset": ManualPage(
            (("firn config unset --topic flights retention.ms", "as the broker's setting says"),),
            see="docs/configuration.md",
        ),
        "firn cluster": ManualPage((("firn cluster describe", "its health"),), see=CLUSTERS),
        "firn cluster describe": ManualPage(
            (
                ("firn cluster describe", "nodes, quorum, brokers, unhealthy partitions, reassignments"),
                ("firn cluster describe --json | jq .wrong", "problems that need attention"),
                ("firn cluster describe --bootstrap-controller a:9093", "when no broker is left"),
            ),
            {
                0: "nothing is wrong",
                1: "something is (see lines that begin with wrong:), or no answer came",
            },
            see=CLUSTERS,
        ),
        "firn cluster reassign": ManualPage(
            (
                ("firn cluster reassign execute --topic flights --to 1,2,3", "move a topic"),
                ("firn cluster reassign verify --topic flights --wait 600", "wait until it has moved"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster reassign generate": ManualPage(
            (
                (
                    "firn cluster reassign generate --topic flights --to 1,2,3 > plan.json",
                    "a plan, as a file",
                ),
                (
                    "firn cluster reassign generate --topic flights --to 1,2,3 --replication-factor 3",
                    "three replicas of each partition",
                ),
            ),
            see=CLUSTERS,
        ),
        "firn cluster reassign execute": ManualPage(
            (
                ("firn cluster reassign execute plan.json --throttle 50000000", "at most 50 MB/s a broker"),
                (
                    "firn cluster reassign execute --topic flights:0 --to 2,3 --dry-run",
                    "print what would move",
                ),
                ("firn cluster reassign execute plan.json --save-current before.json", "with a way back"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster reassign verify": ManualPage(
            (
                ("firn cluster reassign verify plan.json", "how far it is; removes the throttle at the end"),
                ("firn cluster reassign verify --topic flights --wait 600", "wait for ten minutes"),
            ),
            {0: "all have moved", 1: "some have not, or an error: see stderr"},
            see=CLUSTERS,
        ),
        "firn cluster reassign cancel": ManualPage(
            (
                ("firn cluster reassign cancel plan.json", "those of a plan"),
                ("firn cluster reassign cancel --all", "all that are under way"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster reassign list": ManualPage(
            (("firn cluster reassign list --json | jq length", "how many are under way"),), see=CLUSTERS
        ),
        "firn cluster elect": ManualPage(
            (
                ("firn cluster elect preferred --all", "leaders as they are meant to be"),
                ("firn cluster elect preferred --topic flights:0,3", "of two partitions"),
                ("firn cluster elect unclean --topic flights:3", "where none in sync will come back"),
            ),
            {0: "done, or nothing to do", 1: "a partition was refused: see stderr"},
            see=CLUSTERS,
        ),
        "firn cluster unregister": ManualPage(
            (("firn cluster unregister 4", "a broker that is gone for good"),), see=CLUSTERS
        ),
        "firn cluster features": ManualPage(
            (("firn cluster features describe", "levels, and what the node supports"),), see=CLUSTERS
        ),
        "firn cluster features describe": ManualPage(
            (
                ("firn cluster features describe", "levels, and what the node supports"),
                ("firn cluster features describe --bootstrap-controller a:9093 --json", "for programs"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster features upgrade": ManualPage(
            (
                ("firn cluster features upgrade kraft.version=1 --dry-run", "can it be done?"),
                ("firn cluster features upgrade kraft.version=1", "voters can be added then"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster features downgrade": ManualPage(
            (("firn cluster features downgrade group.version=0 --dry-run", "can it be done?"),),
            see=CLUSTERS,
        ),
        "firn cluster quorum": ManualPage(
            (("firn cluster quorum describe", "leader, voters, how far each is"),), see=CLUSTERS
        ),
        "firn cluster quorum describe": ManualPage(
            (
                ("firn cluster quorum describe", "leader, voters, how far each is"),
                ("firn cluster quorum describe --bootstrap-controller a:9093", "without a broker"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster quorum add-voter": ManualPage(
            (
                ("firn cluster quorum add-voter --config server.properties", "on its own machine"),
                ("firn cluster quorum add-voter 4 --endpoint CONTROLLER://d:9093", "from anywhere"),
            ),
            see=CLUSTERS,
        ),
        "firn cluster quorum remove-voter": ManualPage(
            (("firn cluster quorum remove-voter 4", "also one that is lost"),), see=CLUSTERS
        ),
        "firn cluster repair-internal": ManualPage(
            (
                ("firn cluster repair-internal --dry-run", "print the changes"),
                ("firn cluster repair-internal", "make them, ten partitions at a time"),
            ),
            {
                0: "all have their replicas, or with --dry-run could get them",
                1: "some lack them, or the repair failed: stderr says why",
            },
            see=CLUSTERS,
        ),
        "firn produce": ManualPage(
            (
                ("seq 1000 | firn produce flights", "a record of each line"),
                (r"firn produce flights --key-separator '\t' --file rows.tsv", "with keys"),
                ("firn produce copy --format json --file lines", "what firn consume --format json wrote"),
            ),
            {0: "brokers have every record", 1: "they do not: stderr says why"},
            see=COMMANDS,
        ),
        "firn consume": ManualPage(
            (
                ("firn consume flights", "what is there, and then what arrives"),
                ("firn consume flights --from -10 --to end", "the last ten records of each partition"),
                ("firn consume flights --from @2026-01-31T12:00:00Z --show offset,timestamp", "since noon"),
                (
                    "firn consume flights --to end --tier | cut -f1 | uniq -c",
                    "how many of each tier",
                ),
                ("firn consume flights --group billing --format json", "as a member of a group"),
            ),
            see=COMMANDS,
        ),
        "firn profile": ManualPage((("firn profile list", "the clusters that have a name"),), see=COMMANDS),
        "firn profile list": ManualPage(
            (("firn profile list --json | jq -r .[].name", "names, one a line"),)
        ),
        "firn profile add": ManualPage(
            (("firn profile add test node-1:9092,node-2:9092 --properties admin.properties", "with a login"),)
        ),
        "firn profile use": ManualPage(
            (
                ("firn profile use test", "commands ask that cluster"),
                ("firn profile use", "they ask none by name"),
            )
        ),
        "firn profile remove": ManualPage((("firn profile remove test", "its file goes"),)),
        "firn topic": ManualPage((("firn topic list", "all topics"),)),
        "firn topic create": ManualPage(
            (
                ("firn topic create flights --partitions 4", "on local disks only"),
                (
                    "firn topic create flights --config remote.storage.enable=true "
                    "--config local.retention.ms=3600000",
                    "tiered: an hour on disk, the rest in the bucket",
                ),
            ),
            see="docs/configuration.md, Topic",
        ),
        "firn topic list": ManualPage((("firn topic list --json | jq -r .[].name", "names, one a line"),)),
        "firn topic describe": ManualPage((("firn topic describe flights", "id, settings, partitions"),)),
        "firn topic alter": ManualPage(
            (
                ("firn topic alter flights --config retention.ms=86400000", "kept for a day"),
                ("firn topic alter flights --delete-config retention.ms", "as the broker's default says"),
            ),
            see="docs/configuration.md, Topic",
        ),
        "firn topic add-partitions": ManualPage(
            (("firn topic add-partitions flights --partitions 12", "twelve in all"),), see=COMMANDS
        ),
        "firn topic delete-records": ManualPage(
            (
                ("firn topic delete-records flights:3 --before-offset 1000", "print what would go"),
                ("firn topic delete-records flights --before-time 2026-01-31 --execute", "delete it"),
                ("firn topic delete-records --offset-json-file f.json --execute", "Kafka's file"),
            ),
            CHANGED,
            see=COMMANDS,
        ),
        "firn topic settings-known": ManualPage(
            (("firn topic settings-known flights", "its retention works again after a recovery"),),
            see="docs/operations.md, Everything is lost",
        ),
        "firn topic delete": ManualPage(
            (("firn topic delete flights trains", "and their archives, after the grace period"),),
            see="docs/operations.md, The cold tier",
        ),
        "firn group": ManualPage((("firn group list", "all groups, their protocol and state"),)),
        "firn group list": ManualPage((("firn group list --json | jq -r .[].group_id", "ids, one a line"),)),
        "firn group describe": ManualPage(
            (
                ("firn group describe billing", "members, their assignments, lag by partition"),
                ("firn group describe billing --json | jq .lag", "total lag in records"),
            ),
            see="docs/operations.md, Consumer groups",
        ),
        "firn group reset-offsets": ManualPage(
            (
                ("firn group reset-offsets billing --topic flights --to-earliest", "print what it would get"),
                (
                    "firn group reset-offsets billing --all-topics --to-datetime 2026-01-31T06:00Z --execute",
                    "read again from six o'clock (UTC)",
                ),
                ("firn group reset-offsets billing --topic flights:0,3 --shift-by -100", "a bit again"),
                (
                    "firn group reset-offsets billing --all-topics --to-current --export > billing.csv",
                    "keep what is committed; --from-file billing.csv brings it back",
                ),
            ),
            CHANGED,
            see="docs/operations.md, Consumer groups",
        ),
        "firn group delete": ManualPage(
            (
                ("firn group delete billing", "say whether it can be deleted"),
                ("firn group delete billing reports --execute", "delete both"),
            ),
            CHANGED,
            see="docs/operations.md, Consumer groups",
        ),
        "firn group delete-offsets": ManualPage(
            (
                ("firn group delete-offsets billing --topic flights", "print what it has committed"),
                ("firn group delete-offsets billing --topic flights:3 --execute", "delete it"),
            ),
            CHANGED,
            see="docs/operations.md, Consumer groups",
        ),
        "firn offsets": ManualPage(
            (
                ("firn offsets flights", "where each partition begins and ends"),
                (
                    "firn offsets flights:0 --time latest-tiered --time earliest-local",
                    "both sides of the tiers",
                ),
                (
                    "firn offsets flights --time 2026-01-31T06:00Z",
                    "of the first record of that time or later",
                ),
                ("firn offsets --pattern 'flights-.*' --json", "of several topics, for programs"),
            ),
            {0: "done", 1: "a partition's offset is not known: see stderr"},
            see=COMMANDS,
        ),
        "firn log-dirs": ManualPage(
            (
                ("firn log-dirs", "directories of all brokers: state, replicas, sizes"),
                ("firn log-dirs --broker 1,2 --topic flights", "replicas of a topic"),
                ("firn log-dirs --partitions --json", "all of it, for programs"),
            ),
            {0: "all directories are in order", 1: "one is not, or a broker did not answer: see stderr"},
            see=COMMANDS,
        ),
        "firn erase": ManualPage(
            (
                ("firn erase plan --topics 'flights.*' --keys-file keys.txt", "what would it cost?"),
                ("firn erase start --topics 'flights.*' --keys-file keys.txt --execute", "order it"),
                ("firn erase list", "orders that are not gone"),
            ),
            see=ERASURE,
        ),
        "firn erase plan": ManualPage(
            (
                ("firn erase plan --topics 'flights.*' --keys-file keys.txt", "a key on each line"),
                (
                    "firn erase plan --topics flights --keys-file keys.txt --before 2026-01-31T12:00:00Z",
                    "older records alone, by their timestamps",
                ),
                (
                    "firn erase plan --topics flights --keys-file keys.txt --json | jq .dollars",
                    "what the requests would cost, for programs",
                ),
            ),
            {0: "printed, all was looked at", 1: "some could not be looked at and is named, or an error"},
            see=ERASURE,
        ),
        "firn erase start": ManualPage(
            (
                ("firn erase start --topics 'flights.*' --keys-file keys.txt", "print the order"),
                ("firn erase start --topics 'flights.*' --keys-file keys.txt --execute", "give it"),
                (
                    "firn erase start --topics flights --keys-file - --execute",
                    "keys from standard input, one a line",
                ),
                (
                    "firn erase start --topics flights --keys-file keys.b64 --base64 --execute",
                    "keys that are not text",
                ),
                (
                    "firn erase start --topics flights --key-base64 AAAAKg== --execute",
                    "one of them, of four bytes; others see it in ps",
                ),
            ),
            {0: "ordered, or without --execute printed", 1: "refused, or an error: see stderr"},
            see=ERASURE,
        ),
        "firn erase list": ManualPage(
            (
                ("firn erase list", "orders that are open, or done and not gone yet"),
                ("firn erase list --json | jq -r '.orders[].id'", "their ids, one a line"),
            ),
            {0: "listed", 1: "a broker did not answer and is named, or an error: see stderr"},
            see=ERASURE,
        ),
        "firn erase status": ManualPage(
            (
                (
                    "firn erase status 0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b",
                    "what is left, and why",
                ),
                (
                    "firn erase status 0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b --json | jq .problems",
                    "what leaders could not do, for programs",
                ),
            ),
            {0: "it is done", 1: "it is open, gone or unknown, a broker did not answer, or an error"},
            see=ERASURE,
        ),
        "firn erase verify": ManualPage(
            (
                (
                    "firn erase verify 0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b -o report.json",
                    "an order in the list; the report goes to a file, too",
                ),
                (
                    "firn erase verify --topics 'flights.*' --keys-file keys.txt",
                    "once it is gone: the same topics and keys, up to the ends of now",
                ),
            ),
            {0: "all was read and has no such record", 1: "some has one or was not read, or an error"},
            see=ERASURE,
        ),
        "firn erase cancel": ManualPage(
            (
                (
                    "firn erase cancel 0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b",
                    "what is erased stays erased",
                ),
            ),
            {0: "cancelled", 1: "it is done, gone or unknown, or an error: see stderr"},
            see=ERASURE,
        ),
    }
)
