"""Replicas of a partition: what leaders know of their followers, and how followers come to be like leaders.

Machines decide here: which offsets are committed, who is in sync, what is fetched, appended and cut off. What
the image, the controller and connections are is said by whoever runs them; nothing here knows of rooms above.
"""
