"""What stands on disk; no SQL and no engine."""
