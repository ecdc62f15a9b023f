# What pages take for granted. Functions alone: each page's scene calls those that it needs.

# An S3 server, and credentials for it.
s3_server() {
  export AWS_ACCESS_KEY_ID=firn AWS_SECRET_ACCESS_KEY=firn-secret AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
  sleep infinity | (cd "$REPOSITORY" && exec python -m service.cli.embedded_s3 another) > "$STAGE/s3.log" 2>&1 &
  until_true grep -q ^http "$STAGE/s3.log"
  AWS_ENDPOINT_URL=$(grep -m 1 ^http "$STAGE/s3.log")
  export AWS_ENDPOINT_URL
}

# The same, with the bucket of the pages.
s3() {
  s3_server
  firn bucket create s3://bucket > /dev/null
}

until_true() {
  for _ in $(seq 1800); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done
  echo "waited in vain for: $*"
  return 1
}

# One node with an archive at s3://bucket/prefix, which is quick.
node() {
  firn server --set firn.remote.url=s3://bucket/prefix --set firn.http.listener=:9464 \
    --set remote.log.manager.task.interval.ms=500 --set log.retention.check.interval.ms=500 "$@"
}


# Wait until something of a topic is in the archive.
archived() {
  until_true sh -c "firn tiers $1 | grep -q '[0-9]  *[0-9]*\.\.[0-9].*[1-9][0-9]*\$'"
}
