"""Arrow data as text, HTML and files; no engine."""
