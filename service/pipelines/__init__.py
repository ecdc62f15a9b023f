"""The jobs that a long-retention archive needs, each a plain PySpark job: `firn pipeline …` or spark-submit.

On top of the Spark source and of the bucket's formats; knows nothing of a running broker but its address.
"""
