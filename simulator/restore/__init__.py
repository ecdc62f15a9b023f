"""Clusters that lose their disks, and what is read back of the bucket: `python -m simulator.restore`."""
