"""kartosql."""
