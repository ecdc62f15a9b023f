"""Metadata: a Raft log of Kafka's metadata records, the image it builds, and the controller that writes it.

This room knows nothing of sockets, partitions' data or object storage; listeners get each new image by a
callback.
"""
