"""The web console, `firn console`: a process of its own that shows a cluster and its bucket, read only.

The desks (`kafka_desk`, `bucket_desk`, `record_desk`, `watch`) query the cluster, and pure functions
(`pages/`) render pages. It must not know the rooms of the broker: it sees the cluster as every client does,
through Kafka's protocol, the nodes' HTTP listeners and the bucket.
"""
