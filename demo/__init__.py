"""Two minutes with Firn: real data in through an ordinary client, down into S3, and back through two others.

`make demo`, or `python -m demo` from the root of the repository.
"""
