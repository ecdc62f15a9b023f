"""The web console, `firn console`: a process of its own that looks at a cluster and its bucket.

It changes nothing.
What pages show is asked by the desks (`kafka_desk`, `bucket_desk`, `record_desk`, `watch`) and drawn by pure
functions (`pages/`). It must not know the rooms of the broker: it sees the cluster as every client does,
over Kafka's protocol, the nodes' HTTP listeners and the bucket.
"""
