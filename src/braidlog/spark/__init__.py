"""Braidlog in Spark: sessions, and the data source `braidlog`. Needs `pip install 'braidlog[spark]'`."""

from typing import TYPE_CHECKING

from braidlog.spark.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["create_session", "register"]


def register(spark: "SparkSession") -> None:
    """Make `format("braidlog")` known to a session that was made elsewhere."""
    from braidlog.spark.datasource import register

    register(spark)
