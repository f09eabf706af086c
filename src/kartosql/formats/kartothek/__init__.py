"""Kartothek datasets and cubes as they stand in a store."""
