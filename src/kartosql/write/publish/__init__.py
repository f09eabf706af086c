"""Tables of other formats over the files of a dataset, for other engines: metadata alone are written."""
