# The page's Protobuf schema, as the page has it.
sed -n '/^\/\/ example: reading.proto/,/^```/p' "$REPOSITORY/docs/spark-examples.md" | grep -v '^```' > reading.proto
