"""The sinks for open table formats, Delta and Iceberg, and what both need."""
