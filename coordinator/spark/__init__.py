"""Everything that knows Spark: its plans, sessions, settings, and the files of its queries."""
