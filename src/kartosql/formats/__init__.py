"""Formats on disk; no SQL and no engine."""
