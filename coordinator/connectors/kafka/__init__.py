"""The sink for Apache Kafka: transactions, positions in a compacted topic, and what its client tells."""
