"""Apache Kafka: the transactional sink, what Chandy does for queries that read from it, and the client of both."""
