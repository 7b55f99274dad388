"""Definition views: the server resolves the query, and these modules ask it for what a plan needs."""
