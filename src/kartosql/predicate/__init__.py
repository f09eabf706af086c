"""Predicates as trees that any index can be asked about, whatever text they were read from."""
