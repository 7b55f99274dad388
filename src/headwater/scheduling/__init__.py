"""What is due, in which order, and by how many workers: rules without a database, a clock or a thread.

Time and measurements are passed in, so each rule, threshold and edge case is a table in a test.
"""
