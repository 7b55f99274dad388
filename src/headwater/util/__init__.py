"""Small tools that know nothing of stream tables."""
