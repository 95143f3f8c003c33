"""The provider description that Airflow reads at its start. It imports nothing: a failure would break Airflow."""

from __future__ import annotations

from typing import Any

#: The form of a connection; the keys are librdkafka's, and are stored unchanged in the extra field.
_FIELDS: dict[str, Any] = {
    "bootstrap.servers": {
        "label": "Bootstrap servers",
        "description": "Brokers as host:port, separated by commas.",
        "schema": {"type": ["string", "null"]},
    },
    "security.protocol": {
        "label": "Security protocol",
        "schema": {
            "type": ["string", "null"],
            "enum": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", None],
        },
    },
    "sasl.mechanism": {
        "label": "SASL mechanism",
        "description": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER.",
        "schema": {"type": ["string", "null"]},
    },
    "sasl.username": {"label": "SASL user", "schema": {"type": ["string", "null"]}},
    "sasl.password": {
        "label": "SASL password",
        "schema": {"type": ["string", "null"], "format": "password"},
    },
    "ssl.ca.location": {
        "label": "Certificate authority",
        "description": "A PEM file on the workers.",
        "schema": {"type": ["string", "null"]},
    },
    "group.id": {
        "label": "Consumer group",
        "description": "The group whose rights the test checks. Tasks set their own group.",
        "schema": {"type": ["string", "null"]},
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, in the format of ``airflow/provider_info.schema.json``."""
    return {
        "package-name": "kafka-ordered-ops",
        "name": "Kafka ordered ops",
        "description": "Exact, ordered windows of Kafka records for scheduled jobs, into Spark.",
        "versions": ["0.1.0"],
        "integrations": [
            {
                "integration-name": "Kafka ordered windows",
                "external-doc-url": "https://kafka.apache.org/",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "Kafka ordered windows",
                "python-modules": [
                    f"kafka_ordered_ops.airflow.operators.{verb}"
                    for verb in ("ordered", "process", "plan", "part", "commit", "abandon", "check")
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Kafka ordered windows",
                "python-modules": ["kafka_ordered_ops.airflow.sensors.sensor"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Kafka ordered windows",
                "python-modules": [
                    "kafka_ordered_ops.airflow.triggers.cutoff_reached",
                    "kafka_ordered_ops.airflow.triggers.driver",
                    "kafka_ordered_ops.airflow.triggers.live",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "Kafka ordered windows",
                "python-modules": ["kafka_ordered_ops.airflow.hooks.hook"],
            }
        ],
        # Not the type `kafka`, which belongs to the Apache Kafka provider. Tasks accept both.
        "connection-types": [
            {
                "connection-type": "kafka_windows",
                "hook-class-name": "kafka_ordered_ops.airflow.hooks.hook.KafkaWindowsHook",
                "hook-name": "Kafka windows",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "port", "login", "password", "schema"],
                    "relabeling": {"extra": "More settings of the client"},
                },
                "conn-fields": _FIELDS,
            }
        ],
        "task-decorators": [
            {
                "name": "kafka_window",
                "class-name": "kafka_ordered_ops.airflow.decorators.taskflow.kafka_window_task",
            }
        ],
        "extra-links": [
            "kafka_ordered_ops.airflow.support.links.SparkJobLink",
            "kafka_ordered_ops.airflow.support.links.WindowLink",
        ],
        "config": {
            "kafka_ordered_ops": {
                "description": "Settings of kafka-ordered-ops.",
                "options": {
                    "window_url": {
                        "description": "A page about a window, for the link of tasks: a template with "
                        "{window_id}, {group}, {topic}, {since} and {cutoff}.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "https://console.example.org/topics/{topic}",
                        "default": "",
                    },
                    "settings_allowed": {
                        "description": "Additional librdkafka settings that connections may have, separated by "
                        "commas, at your own risk.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "socket.nagle.disable",
                        "default": "",
                    },
                },
            }
        },
    }
