"""Metadata: a Raft log of Kafka's metadata records, the image it adds up to, the controller that writes it.

Knows nothing of sockets, partitions' data or object storage; who follows the image is told by a callback.
"""
