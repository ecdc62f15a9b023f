"""The client's side of Kafka's protocol: asyncio channels, a blocking client, admin calls, cluster health.

Nodes, the commands, the console and Spark speak to brokers by it. Must not know what this node serves.
"""
