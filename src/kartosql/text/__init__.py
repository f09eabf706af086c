"""Text made of plain values: escapes, sizes, aligned tables, HTML and SVG; only the standard library."""
