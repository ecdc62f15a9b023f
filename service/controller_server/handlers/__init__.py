"""Handlers of controllers' listeners: Kafka's messages to what the quorum and the controller are asked.

They run on the node's event loop.
"""
