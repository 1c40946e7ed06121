"""Lets Spark find the data source by itself: it searches packages whose names begin with `pyspark_`.

So every session knows `format("braidlog")`, however it was made.
"""

from braidlog.spark.datasource import BraidlogDataSource

__all__ = ["DefaultSource"]

DefaultSource = BraidlogDataSource
