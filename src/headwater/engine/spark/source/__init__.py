"""The data source `headwater` of Spark, and the snapshots under which its tasks read."""
