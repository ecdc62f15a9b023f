"""The archive as a Spark DataFrame: plans from the manifest, reads segments straight from the bucket.

Owns options, planning, reading and the Python data source named ``firn``. Runs on drivers and executors that
have no broker, so it imports the bucket's rooms and the wire protocol, and none of a node's. pyspark and
pyarrow are imported only where their objects are made, so options and planning work, and are tested, without
a JVM.
"""
