"""The format of stored keys, values and rows, as bytes and as Arrow columns."""
