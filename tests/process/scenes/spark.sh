# An archive with records in the partition that the page asks for.
s3
node --set auto.create.topics.enable=false
firn topic create flights --partitions 4 --config remote.storage.enable=true --config segment.bytes=1048576 \
  --config retention.ms=-1
firn topic create flights-again --partitions 4
seq 150000 | firn produce flights --partition 3
archived flights
