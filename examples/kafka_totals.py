"""From Kafka to Kafka, each record counted once: `python examples/kafka_totals.py [FOLDER]`.

It needs a Kafka at localhost:9092 and `pip install 'chandy[kafka]'`. Run it again and again: each run sends a hundred
more orders, goes on where the last one has stopped, and publishes what has changed in a transaction.
"""

import json
import sys
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from chandy import CheckpointConfig, CheckpointCoordinator, KafkaSink

SERVERS = "localhost:9092"
ORDERS, TOTALS = "example-orders", "example-totals"
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def main(folder: Path) -> None:
    send_orders()
    spark = SparkSession.builder.master("local[2]").config("spark.jars.packages", PACKAGE).getOrCreate()
    with CheckpointCoordinator(
        spark,
        pipeline="orders",
        storage=f"{folder}/checkpoints",
        config=CheckpointConfig(interval="10 s"),
    ) as coordinator:
        orders = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", SERVERS)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", ORDERS)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("cast(key AS string) AS customer", "cast(cast(value AS string) AS long) AS cents")
        )
        totals = coordinator.aggregate(
            orders, by=["customer"], uid="totals", orders=("*", "count"), cents=("cents", "sum")
        )
        query = coordinator.start(
            totals.selectExpr("customer AS key", "to_json(struct(*)) AS value").writeStream.trigger(
                availableNow=True
            ),
            name="totals",
            sink=KafkaSink(bootstrap_servers=SERVERS, topic=TOTALS),
        )
        query.awaitTermination()
        print("goes on from a checkpoint" if coordinator.restored else "begins")
    # The end of the pipeline has published everything.
    for customer, total in sorted(published().items()):
        print(f"{customer}: {total['orders']} orders, {total['cents']} cents")


def send_orders() -> None:
    admin = AdminClient({"bootstrap.servers": SERVERS})
    for made in admin.create_topics([NewTopic(ORDERS, 2), NewTopic(TOTALS, 1)]).values():
        try:
            made.result(30)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise
    producer = Producer({"bootstrap.servers": SERVERS})
    for cents in range(100):
        producer.produce(ORDERS, str(cents), f"customer {cents % 4}")
    if producer.flush(30):
        raise SystemExit(f"Kafka at {SERVERS} does not take the orders")


def published() -> dict[str, dict[str, int]]:
    consumer = Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "example",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([TOTALS])
    latest = {}
    # The end of the partition is told as an error.
    while not (message := consumer.poll(30)).error():
        latest[message.key().decode()] = json.loads(message.value())
    consumer.close()
    return latest


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/chandy-examples/kafka-totals"))
