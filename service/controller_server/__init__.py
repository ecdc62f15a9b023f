"""The controller's listener: its table of APIs and their handlers.

Decisions are made by `metadata.controller`.
"""
