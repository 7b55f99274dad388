"""What the catalog in the database says, read and written."""
