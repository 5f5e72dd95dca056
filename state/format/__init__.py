"""Keys, values and rows as bytes and as Arrow columns: the format of all that is stored."""
