"""For Spark users: the data source "headwater", which reads PostgreSQL and follows stream tables.

>>> import headwater.spark                                             # doctest: +SKIP
>>> headwater.spark.register(spark)                                    # doctest: +SKIP
>>> options = {"dsn": "postgresql://localhost/shop", "table": "public.orders"}  # doctest: +SKIP
>>> orders = spark.read.format("headwater").options(**options).load()  # doctest: +SKIP
"""

from headwater.engine.spark.source.datasource import register
from headwater.engine.spark.source.users import Consumer, consumers, drop_consumer, snapshot

__all__ = ["Consumer", "consumers", "drop_consumer", "register", "snapshot"]
