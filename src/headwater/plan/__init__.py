"""From a view's text to a delta plan. Pure: no connection, no input or output.

`build` turns the canonical text of a query into operators, `aggregates` decides what state an aggregate
needs, `terms` turns operators and the set of changed sources into terms, `render` writes operators and terms
as SQL for PostgreSQL.
"""
