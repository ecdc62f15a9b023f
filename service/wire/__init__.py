"""Kafka's messages as bytes: framing, headers, the table of served APIs, codecs for every served version.

Handlers see one *canonical* message per API: kio's dataclass of the newest version served (`api.py`).
Produce and Fetch, whose records must never be copied, have hand-written codecs (`produce.py`, `fetch.py`).
Everything here is pure: bytes in, values out, and every length is bounded by the bytes that are there before
anything is allocated. Must not know sockets, logs or topics.
"""
