# An archive with records of 2013.
s3
node
firn topic create flights --partitions 4 --config remote.storage.enable=true --config segment.bytes=1048576 \
  --config retention.ms=-1 --config segment.ms=31536000000
python - << 'END' | firn produce flights --format json
import json
for number in range(80_000):
    when = 1_357_000_000_000 + number * 300_000
    print(json.dumps({"key": f"N{number % 97}", "value": f"flight {number} " + 40 * "x", "timestamp": when}))
END
archived flights
