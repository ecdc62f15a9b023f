# What pages take for granted. Functions alone: each page's scene calls those that it needs.

# An S3 server, with the bucket of the pages, and credentials for it.
s3() {
  export AWS_ACCESS_KEY_ID=firn AWS_SECRET_ACCESS_KEY=firn-secret AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
  sleep infinity | (cd "$REPOSITORY" && exec python -m service.cli.embedded_s3 bucket) > "$STAGE/s3.log" 2>&1 &
  until_true grep -q http "$STAGE/s3.log"
  AWS_ENDPOINT_URL=$(head -1 "$STAGE/s3.log")
  export AWS_ENDPOINT_URL AWS_ALLOW_HTTP=true
}

until_true() {
  for _ in $(seq 600); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done
  echo "waited in vain for: $*"
  return 1
}

# One node with an archive at s3://bucket/prefix, which is quick.
node() {
  firn server --set firn.remote.url=s3://bucket/prefix --set firn.http.listener=:9464 \
    --set remote.log.manager.task.interval.ms=500 --set log.retention.check.interval.ms=500 "$@"
}

# The topic `flights`, of which some is in the archive, and the group `billing` that has read all.
flights() {
  firn topic create flights --partitions 4 --config remote.storage.enable=true --config segment.bytes=1048576 \
    --config retention.ms=-1 "$@"
  seq 2000 | sed 's/$/ 0123456789/' | firn produce flights --acks all
}
