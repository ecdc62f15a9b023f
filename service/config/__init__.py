"""Configuration: every key with its type, default and bounds, and what the settings of a node come to.

Owns what is accepted, refused and told of keys. Knows nothing of who uses a setting.
"""
