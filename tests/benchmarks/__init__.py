"""Measures the figures in docs/performance.md: ``python -m tests.benchmarks``."""
