"""The client's side of Kafka's protocol: one session under two clients, admin requests, cluster health.

Nodes, commands, the console and Spark's tail use it to talk to brokers. Must not know what this node serves.
"""
