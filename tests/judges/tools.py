"""Kafka's own tools over TLS and logins: one script for Firn and for Apache Kafka, and what each step says.

``python -m tests.judges.tools`` prints the steps whose words differ.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.judges.clusters import SCRAM
from tests.judges.matrix import Site
from tests.support.kafka_tools import run_tool
from tests.support.quorums import Program


class Step(NamedTuple):
    """A tool, who runs it, and its arguments; `@FOLDER` in them is the cluster's."""

    tool: str
    who: str
    arguments: str
    stdin: bytes = b""


SCRIPT: Final = Path(__file__).with_name("tools.txt")
_CLASSES: Final = {"metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand"}


def script() -> list[Step]:
    steps = []
    for line in SCRIPT.read_text().splitlines():
        if not line.startswith("#"):
            command, _, stdin = line.partition(" < ")
            who, _, rest = command.partition(": ")
            tool, _, arguments = rest.partition(" ")
            steps.append(Step(tool, who, arguments, "".join(f"{one}\n" for one in stdin.split()).encode()))
    return steps


def _files(site: Site) -> dict[str, tuple[str, Path]]:
    """Address and client's properties of each who runs a step."""
    modules = "org.apache.kafka.common.security"
    login = 'required username="{}" password="{}";'
    trusted = "ssl.truststore.type=PEM\nssl.truststore.location={}\n"
    ca = trusted.format(site.cluster.ca_pem)

    def scram(user: str, password: str, trust: str = ca) -> tuple[str, str]:
        module = f"{modules}.scram.ScramLoginModule {login.format(user, password)}"
        lines = f"security.protocol=SASL_SSL\nsasl.mechanism={SCRAM[1]}\nsasl.jaas.config={module}\n{trust}"
        return site.cluster.bootstrap("SASL_SSL"), lines

    own = f"security.protocol=SSL\n{ca}ssl.keystore.type=PEM\nssl.keystore.location={site.own['bob']}\n"
    given = {
        "admin": scram("admin", "admin-secret"),
        "alice": scram("alice", "secret"),
        "bob": scram("bob", "pencil"),
        "wrong": scram("bob", "wrong"),
        "wrong CA": scram("bob", "pencil", trusted.format(site.other)),
        "bob by certificate": (site.cluster.bootstrap("MTLS"), own),
    }
    files = {}
    for who, (address, lines) in given.items():
        path = site.folder / f"{who.replace(' ', '-')}.properties"
        path.write_text(lines)
        files[who] = (address, path)
    return files


def _words(text: str, folder: Path) -> list[str]:
    """Lines of a tool without what differs from run to run, sorted: Java's maps have no order."""
    text = text.replace(str(folder), "@FOLDER")
    text = re.sub(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]?", "TIME", text)
    text = re.sub(r"(localhost|127\.0\.0\.1)(/127\.0\.0\.1)?(:\d+)?", "HOST", text)
    text = re.sub(
        r"console-consumer-\d+|\b(correlationId|correlation id|Offset|Epoch|Watermark)\W*\d+", "N", text
    )
    text = re.sub(r"(?<=id: )[\w-]{22}|\b\d{3,}\b|LastCaughtUp\S+", "N", text)
    text = re.sub(r"Request Request\(.*\) needs", "The request needs", text)  # as Java prints it
    text = re.sub(r"\b[\w-]{22}\b(?=[\"\s])", "ID", text)
    text = re.sub(r"salt=\S+|TopicId: \S+", "", text)
    kept = [line.rstrip() for line in text.splitlines() if not line.startswith(("\tat ", "\t...", "SLF4J"))]
    return sorted(line for line in kept if line.strip())


def told_by(program: Program, folder: Path) -> list[tuple[Step, int, list[str]]]:
    """Exit code and words of each step."""
    site = Site(folder, program)
    told = []
    with site.cluster.start():
        site.prepare()
        files = _files(site)
        for step in script():
            address, path = files[step.who]
            arguments = step.arguments.replace("@FOLDER", str(folder)).split()
            done = run_tool(
                _CLASSES.get(step.tool, step.tool),
                "--bootstrap-server",
                address,
                "--command-config",
                path,
                *arguments,
                stdin=step.stdin,
            )
            told.append((step, done.returncode, _words((done.stdout + done.stderr).decode(), folder)))
            print(f"{step.who}: {step.tool} {step.arguments}: {done.returncode}", flush=True)
    return told


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="firn-tools-"))
    theirs, ours = (told_by(one, folder / one.value) for one in (Program.KAFKA, Program.FIRN))
    differ = [(a, b) for a, b in zip(theirs, ours, strict=True) if a != b]
    for (step, code, words), (_, other, our_words) in differ:
        print(f"DIFFERS {step.who}: {step.tool} {step.arguments}: {code}, {other}")
        print("".join(f"  kafka: {line}\n" for line in words if line not in our_words), end="")
        print("".join(f"  firn:  {line}\n" for line in our_words if line not in words), end="")
    print(f"{len(theirs)} steps, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
