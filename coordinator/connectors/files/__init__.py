"""The sink for directories of files: formats, and the log that Spark's readers follow."""
