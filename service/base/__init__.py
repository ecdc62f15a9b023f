"""The ground floor: names, errors, clock, files, configuration. Knows nothing of Kafka's messages or of
storage.
"""
