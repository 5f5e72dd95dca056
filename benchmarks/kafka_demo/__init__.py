"""The demo of Kafka: flights through keyed state into Kafka and PostgreSQL, while each of them is killed."""
