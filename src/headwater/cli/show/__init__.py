"""Results as text for people, by subject."""
