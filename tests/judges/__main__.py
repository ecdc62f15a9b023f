"""Run suites of other projects against a secured Firn, a secured Apache Kafka, or both, and compare."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.judges.go_suites import FranzGo, Sarama
from tests.judges.kafka_python import KafkaPython
from tests.judges.kafkajs import KafkaJs
from tests.judges.librdkafka import Librdkafka
from tests.judges.suites import PASSED, States, Suite, record, reference
from tests.support.quorums import Program

SUITES: dict[str, type[Suite]] = {
    one.name: one for one in (Librdkafka, FranzGo, KafkaPython, Sarama, KafkaJs)
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make judges", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all, where none is named")
    parser.add_argument("--against", nargs="+", default=["firn"], choices=[one.value for one in Program])
    parser.add_argument("--record", action="store_true", help="write the states into reference.json")
    parser.add_argument("--only", default="", help="part of the names of cases to be run, of librdkafka's")
    parser.add_argument("--keep", type=Path, help="a folder for logs; else they are gone if all is well")
    given = parser.parse_args()
    for name in given.suites:
        if name not in SUITES:
            parser.error(f"no suite is called {name}")
    worse = 0
    for suite in (
        SUITES[name]()
        for name in given.suites or (one for one, kind in SUITES.items() if not kind.is_asked_for)
    ):
        suite.fetch()
        suite.only = given.only
        for program in map(Program, given.against):
            folder = given.keep or Path(tempfile.mkdtemp(prefix="firn-judges-"))
            at = folder / f"{suite.name}-{program.value}-{int(time.time())}"
            at.mkdir(parents=True)
            print(f"{suite.name} {suite.version} against {program.value}; logs in {at}", flush=True)
            states = suite.judge(program, at)
            if given.record:
                record(suite.name, program, states)
            worse += report(suite, program, states)
    return 1 if worse else 0


def report(suite: Suite, program: Program, states: States) -> int:
    """Print how many passed, and what passes against Kafka alone; return how many of these have no reason."""
    counts = Counter(states.values())
    print(f"  {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}")
    if program is Program.KAFKA:
        return 0
    worse = 0
    for case, state in reference().get(suite.name, {}).get("kafka", {}).items():
        if suite.only not in case:
            continue
        if state == PASSED and states.get(case) != PASSED:
            excuse = suite.excuse(case)
            worse += not excuse
            print(f"  {'differs' if excuse else 'WORSE'}: {case} is {states.get(case)}: {excuse or '?'}")
    return worse


if __name__ == "__main__":
    sys.exit(main())
