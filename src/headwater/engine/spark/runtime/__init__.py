"""Spark itself: its Java, its JVM, its session, and where it runs."""
