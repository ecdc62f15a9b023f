# A checkout with its .venv, and a bucket. The group that the page describes has read something.
s3
mkdir -p .venv/bin
ln -s "$STAGE/bin/firn" .venv/bin/firn
