"""The jobs that a long-retention archive needs, each a plain PySpark job: `firn pipeline …` or spark-submit.

They build on the Spark source and on the bucket's formats; of a running broker they know only its address.
"""
