"""How rows travel between PostgreSQL and Spark."""
