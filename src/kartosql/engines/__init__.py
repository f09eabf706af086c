"""Engines: pruned scan to Arrow."""
