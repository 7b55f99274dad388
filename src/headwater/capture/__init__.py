"""Capture: how changes of a source reach its change table, and which of them a refresh consumes."""
