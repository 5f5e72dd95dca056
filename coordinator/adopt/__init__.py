"""Adopting a query of plain Spark: what its checkpoint has, whether it fits, and how the pipeline takes it over."""
