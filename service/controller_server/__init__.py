"""The controller's listener: its table of APIs, and a handler for each.

The controller that decides is `metadata.controller`.
"""
