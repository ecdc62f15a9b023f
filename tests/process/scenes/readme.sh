# A checkout with its .venv, and an S3 server. The group that the page describes has read something.
s3_server
mkdir -p .venv/bin
ln -s "$STAGE/bin/firn" .venv/bin/firn
