"""Handlers of controllers' listeners: translate Kafka's messages for the quorum and the controller.

They run on the node's event loop.
"""
