"""What Spark's Kafka connector says, as errors of this package: by the text alone, in the forms Spark gives it."""

from __future__ import annotations

import pytest

from kafka_ordered_ops import (
    AuthenticationError,
    AuthorizationError,
    BrokerUnreachableError,
    ConfigError,
    CorruptRecordError,
    JobFailedError,
    PartitionSetChangedError,
    ReadError,
    ReadTimeoutError,
    RecordsLostError,
    RecordTooLargeError,
    TlsError,
    UnknownTopicError,
)
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.write.write import job_errors
from tests.support.spark_support import plan_of

_READER = (
    "\tat org.apache.spark.sql.kafka010.KafkaSourceRDD$$anon$1.getNext(KafkaSourceRDD.scala:98)"
)
_DRIVER = "\tat org.apache.spark.sql.kafka010.ConsumerStrategy.retrieveAllPartitions(X.scala:65)"
_WRITER = "\tat org.apache.spark.sql.kafka010.KafkaWriteTask.execute(KafkaWriteTask.scala:54)"
_LOST = (
    "Some data may have been lost because they are not available in Kafka any more;\n"
    "Reason: Could not read records in offset [3, 50) for topic partition a-b-7\n"
    "with consumer group orders-hourly-1-executor."
)
_ILLEGAL = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"


def py4j(*lines: str) -> str:
    """As a classic session gives it."""
    return "\n".join(["An error occurred while calling o66.count.", *lines])


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            py4j(
                f": {_ILLEGAL}: {_LOST}",
                _READER,
                "Caused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position",
            ),
            RecordsLostError,
            "a-b[7] from offset 3 to 50",
        ),
        (
            py4j(
                f": {_ILLEGAL}: {_LOST}",
                _READER,
                "Caused by: java.util.concurrent.TimeoutException: Cannot fetch record for offset 3 in 1 ms",
            ),
            ReadTimeoutError,
            "a-b[7] from offset 3 to 50",
        ),
        (f"({_ILLEGAL}) {_LOST}\n\nJVM stacktrace:\n{_ILLEGAL}\n{_READER}", ReadError, "a-b[7]"),
        (
            py4j(
                f": {_ILLEGAL}: Partitions specified for Kafka start offsets don't match what are assigned. "
                "Maybe topic partitions are created",
                _DRIVER,
            ),
            PartitionSetChangedError,
            "other partitions",
        ),
        *(
            (
                py4j(
                    f": java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.{name}: said",
                    _DRIVER,
                    f"Caused by: org.apache.kafka.common.errors.{name}: said",
                ),
                kind,
                "said",
            )
            for name, kind in {
                "UnknownTopicOrPartitionException": UnknownTopicError,
                "SaslAuthenticationException": AuthenticationError,
                "TopicAuthorizationException": AuthorizationError,
                "TimeoutException": BrokerUnreachableError,
                "CorruptRecordException": CorruptRecordError,
                "RecordTooLargeException": RecordTooLargeError,
                "InvalidConfigurationException": ConfigError,
            }.items()
        ),
        (
            py4j(
                ": java.util.concurrent.ExecutionException: x",
                _DRIVER,
                "Caused by: org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed",
                "Caused by: javax.net.ssl.SSLHandshakeException: PKIX path building failed",
                "Caused by: sun.security.validator.ValidatorException: PKIX",
            ),
            TlsError,
            "PKIX path",
        ),
        (
            py4j(
                ": org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient",
                _DRIVER,
                "Caused by: org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given",
            ),
            BrokerUnreachableError,
            "No resolvable",
        ),
        (
            py4j(": java.lang.ArithmeticException: long overflow", _READER),
            ReadError,
            "beyond Spark",
        ),
    ],
)
def test_the_deepest_known_cause_decides(text: str, kind: type, said: str) -> None:
    """Each has its type, and so whether it may be tried again; the message keeps place and words."""
    error = named_error(RuntimeError(text))
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    "text",
    [
        py4j(": org.apache.kafka.common.errors.TopicAuthorizationException: said", _WRITER),
        py4j(
            ": java.lang.ArithmeticException: long overflow", "\tat com.example.Job.run(Job.java:1)"
        ),
        py4j(": java.lang.IllegalStateException: said", _READER),
        py4j(": org.apache.spark.SparkException: Job aborted", _READER),
    ],
)
def test_what_is_not_the_reading_stays_unnamed(text: str) -> None:
    """A job that writes to Kafka, or fails by itself, is no failed read of the window."""
    assert named_error(RuntimeError(text)) is None


def test_the_plan_of_a_query_raises_nothing() -> None:
    """Spark prints the plan within its own errors, and in it what the connector's engine could raise."""
    error = "kafka_ordered_ops.core.errors.ReadError: the record at "
    plan = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703;\n"
        "'Project ['nope]\n+- Project [CASE WHEN (timestamp#5 < 1900-01-02 00:00:00) THEN cast(raise_error("
        f"USER_RAISED_EXCEPTION, map(errorMessage, concat(\n{error}, topic#2, [, cast(partition#3 as string)"
    )
    assert named_error(RuntimeError(plan)) is None
    raised = named_error(
        RuntimeError(f"[USER_RAISED_EXCEPTION] \n{error}orders[0] offset 1 is\n{plan}")
    )
    assert type(raised) is ReadError
    assert str(raised).startswith("the record at orders[0]")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            py4j(
                ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed",
                "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.jobAbortedError(QueryExecutionErrors.scala:1)",
                "Driver stacktrace:",
                "Caused by: java.nio.file.NoSuchFileException: /tmp/shuffle_0_7_0.index",
                "\tat java.base/sun.nio.fs.UnixException.translateToIOException(UnixException.java:92)",
                "\t... 1 more",
            ),
            "java.nio.file.NoSuchFileException: /tmp/shuffle_0_7_0.index",
        ),
        (py4j(": java.io.IOException: no space left"), "java.io.IOException: no space left"),
        (
            py4j(
                ": org.apache.spark.SparkException: Task failed: Traceback (most recent call last):",
                '  File "job.py", line 1, in waiting',
                "ValueError: the user's own",
                "",
                "\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)",
            ),
            "ValueError: the user's own",
        ),
        ("[PATH_NOT_FOUND] no path\nJVM stacktrace:", "[PATH_NOT_FOUND] no path"),
    ],
)
def test_a_failed_job_says_why(text: str, told: str) -> None:
    """Not that Python called Java, nor where in Java it was."""
    with pytest.raises(JobFailedError) as raised, job_errors([plan_of([])], "out"):
        raise RuntimeError(text)
    assert f"failed: {told}. Nothing was committed" in str(raised.value)
