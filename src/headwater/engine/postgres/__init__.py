"""The engine inside PostgreSQL."""
