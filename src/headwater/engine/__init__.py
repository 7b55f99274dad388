"""Engines compute what a plan asks for and leave it in scratch tables for `apply`."""
