"""A refresh: what it must know, what it decides, the steps it takes, and the transaction around them."""
