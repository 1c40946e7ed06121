"""Send a shuffle and a join of Spark through a folder or a bucket, instead of between executors.

    python examples/shuffle.py
    python examples/shuffle.py --store s3://bucket/shuffles

No Braidlog has to run: a shuffle uses only the store. `docs/shuffle.md` says what that saves across zones.
"""

import argparse
import tempfile

from pyspark.sql import functions as f

from braidlog.spark import create_session
from braidlog.spark.shuffle import BlobShuffle

ROWS = 100_000
CUSTOMERS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", metavar="URL", help="where the batches go; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = create_session("local[2]", app_name="shuffle")
        shuffle = BlobShuffle(options.store or f"file://{folder}", zones=["zone-a", "zone-b"])

        orders = spark.range(ROWS).selectExpr(f"id % {CUSTOMERS} AS customer", "id AS order_id", "id % 7 AS amount")
        customers = spark.range(CUSTOMERS).selectExpr("id AS customer", "concat('customer ', id) AS name")

        # The same rows in the same partitions as orders.repartition(8, "customer").
        by_customer = shuffle.repartition(orders, 8, "customer")
        totals = (
            shuffle.join(by_customer, customers, 8, "customer").groupBy("name").agg(f.sum("amount").alias("amount"))
        )
        print(f"{ROWS} orders of {totals.count()} customers")
        spark.stop()


if __name__ == "__main__":
    main()
