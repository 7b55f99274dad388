"""Installing, upgrading and removing Headwater in a database."""
