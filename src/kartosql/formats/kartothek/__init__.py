"""Kartothek datasets and cubes  in a store."""
