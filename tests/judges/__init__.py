"""Test suites of other projects' clients, run against a secured Firn and a secured Apache Kafka alike.

No tests of ours: `make judges` fetches their sources from package registries into .cache/judges, starts one
controller and three brokers with TLS, logins and an authorizer, runs a suite, and compares what passes with
what passes against Apache Kafka (`reference.json`). docs/judges.md says what came of it.
"""
