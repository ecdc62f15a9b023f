# The file that Kafka ships.
cp "$REPOSITORY/tests/golden/config/shipped/server.properties" .
