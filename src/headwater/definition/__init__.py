"""Definition views: the server resolves the query, and these modules read from it what a plan needs."""
