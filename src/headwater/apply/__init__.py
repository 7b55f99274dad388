"""From a computed delta to stored rows, with the change rows that dependents need."""
