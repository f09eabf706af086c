"""Folders of files, datasets of other formats and other stores as tables: what ATTACH opens."""
