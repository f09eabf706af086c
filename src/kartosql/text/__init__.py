"""Text for people, from plain values: escapes, sizes, aligned tables, HTML and SVG; only the standard library."""
