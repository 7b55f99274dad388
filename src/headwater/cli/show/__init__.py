"""Results as text for people, by what they are about."""
