"""Operators from a query: its parse tree is read, level by level, and compared with the server's analysis."""
