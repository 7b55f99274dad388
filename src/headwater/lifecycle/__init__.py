"""What users do to a stream table: create, alter, replace, drop, repair."""
