"""The engine on Spark: PostgreSQL reads and finishes, Spark joins and aggregates in between."""
