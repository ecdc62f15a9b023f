"""What Firn costs, measured from outside, beside Apache Kafka where its jars are.

`python -m bench` runs everything, `python -m bench idle fetch --kafka --rounds 5` some of it. Load comes from
raw sockets in this process, so that the CPU of the node is all its own. Shared machines are noisy: sides
alternate, medians are shown.

`python -m bench.latency` is an innocent client beside something nasty: what one peer's work makes others
wait.
"""
