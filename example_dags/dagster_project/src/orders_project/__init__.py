"""Orders from Kafka, by the hour: `dg dev` in this project's folder.

From the environment: KAFKA_BOOTSTRAP, ORDERS_TOPIC, ORDERS_OUTPUT (a folder), SPARK_MASTER.
"""
