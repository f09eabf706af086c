"""The footers of Parquet files: the one reader of them, and what is remembered of them."""
