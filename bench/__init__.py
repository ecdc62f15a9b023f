"""Benchmarks of Firn from outside, beside Apache Kafka if its jars are installed.

`python -m bench` runs everything, `python -m bench idle fetch --kafka --rounds 5` some of it. Load comes from
raw sockets in this process, so that the node's CPU time is its own. Shared machines are noisy: the sides
alternate, and medians are shown.

`python -m bench.latency` measures how long an innocent client waits while another peer does something costly.
"""
