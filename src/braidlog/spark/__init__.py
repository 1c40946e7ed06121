"""Braidlog in Spark: sessions and the data source `braidlog`.

Needs `pip install 'braidlog[spark]'`.
"""

from typing import TYPE_CHECKING

from braidlog.spark.session import create_session
from braidlog.spark.worker_exit import exit_quietly_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["create_session", "register"]

exit_quietly_here()  # every worker of Spark that uses Braidlog imports this package


def register(spark: "SparkSession") -> None:
    """Register `format("braidlog")` with a session that was made elsewhere."""
    from braidlog.spark.datasource import register

    register(spark)
