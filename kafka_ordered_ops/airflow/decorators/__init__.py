"""``@task.kafka_window``."""
