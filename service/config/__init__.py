"""Configuration: every key with its type, default and bounds, and the settings of nodes and topics.

Decides which keys and values are accepted, refused and described. Knows nothing of the settings' users.
"""
