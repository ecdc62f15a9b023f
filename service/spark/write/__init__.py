"""Rows of a DataFrame as records of topics, sent to brokers through Kafka's protocol."""
