"""Find the error of this package in Spark's report of a failed task, and translate the connector's errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerUnreachableError,
    ConfigError,
    CorruptRecordError,
    KafkaOrderedOpsError,
    PartitionSetChangedError,
    ReadError,
    ReadTimeoutError,
    RecordsLostError,
    RecordTooLargeError,
    TlsError,
    UnknownTopicError,
)
from kafka_ordered_ops.spark.environment import java_failure
from kafka_ordered_ops.spark.worker_python import wrong_python

#: An error of this package as Python prints it at the end of a traceback; Spark passes on only this text. The message
#: ends where Spark or the JVM appends its own text. Many of Spark's errors print the query plan, in which the engine
#: connector has such a text at the beginning of a `concat`, without any raised error.
_NAMED: Final = re.compile(
    rf"(?<!concat\(\n)^{re.escape(errors.__name__)}\.(?:\w+\.)?(\w+): (.*?)(?=\n\s*SQLSTATE:| SQLSTATE:|\n\s+at |\n\nDriver stacktrace|\n*\Z)",
    re.MULTILINE | re.DOTALL,
)

#: Classes with which the connector reads. It also writes, but errors of a job's own writes are the job's.
_CONNECTOR: Final = re.compile(
    r"\bsql\.kafka010\.(Kafka(SourceRDD|Relation|Batch|Offset|Exceptions|IllegalState|RecordTo)|consumer\.|"
    r"ConsumerStrategy)"
)

#: One exception of a chain, as Java prints it; the last one is the root cause.
_JAVA: Final = re.compile(
    r"^(?:: |Caused by: |\()?(?:[\w$]+\.)+([\w$]+(?:Exception|Error))(?:\)|:|$)[ \t]*(.*)$",
    re.MULTILINE,
)

#: The offsets that the connector was reading.
_OFFSETS: Final = re.compile(r"offset \[(\d+), (\d+)\) for topic partition (\S+)-(\d+)")


@dataclass(frozen=True)
class _Meaning:
    """The error of this package for an exception of the JVM; the message has `{where}` and `{said}`."""

    kind: type[KafkaOrderedOpsError]
    message: str
    #: Words that the exception's message must contain, if its class is not enough.
    words: str = ""


_NO_ANSWER: Final = _Meaning(
    BrokerUnreachableError,
    "no broker answered the Kafka connector in time ({said}): check bootstrap.servers, security.protocol, and the network "
    "to the brokers from the driver and from the executors. Then run the window again",
)
_NO_LOGIN: Final = _Meaning(
    AuthenticationError,
    "the cluster refused the credentials that engine 'connector' gave ({said}): check sasl.mechanism, sasl.username "
    "and sasl.password",
)
_NO_TLS: Final = _Meaning(
    TlsError,
    "the TLS connection of the Kafka connector failed ({said}): check ssl.ca.location, and the names in the "
    "brokers' certificates. Without an authority in the settings, Java uses its own trust store",
)
_NO_RIGHT: Final = _Meaning(
    AuthorizationError,
    "a right is missing ({said}): engine 'connector' needs Read and Describe on the topics",
)
_NO_TOPIC: Final = _Meaning(
    UnknownTopicError,
    "a topic of the window does not exist any more ({said}). Plan the window again",
)
_CORRUPT: Final = _Meaning(
    CorruptRecordError,
    "a record cannot be decoded{where}: {said}. Restore the partition from a replica, or accept the loss: run the window again "
    "with on_data_loss='warn' and engine 'python'",
)
_BAD_SETTING: Final = _Meaning(
    ConfigError, "Java's Kafka client does not accept the settings: {said}"
)

#: By the simple name of the exception's class; the first one whose words match applies.
_MEANINGS: Final[Mapping[str, tuple[_Meaning, ...]]] = {
    "OffsetOutOfRangeException": (
        _Meaning(
            RecordsLostError,
            "the log no longer holds all records to be read{where}: retention or deletion removed them, or "
            "the topic was recreated. Plan the window again, or accept the loss with on_data_loss='warn'",
        ),
    ),
    "UnknownTopicOrPartitionException": (_NO_TOPIC,),
    "UnknownTopicIdException": (_NO_TOPIC,),
    "SaslAuthenticationException": (_NO_LOGIN,),
    "UnsupportedSaslMechanismException": (_NO_LOGIN,),
    "IllegalSaslStateException": (_NO_LOGIN,),
    "SslAuthenticationException": (_NO_TLS,),
    "SSLHandshakeException": (_NO_TLS,),
    "TopicAuthorizationException": (_NO_RIGHT,),
    "GroupAuthorizationException": (_NO_RIGHT,),
    "ClusterAuthorizationException": (_NO_RIGHT,),
    "CorruptRecordException": (_CORRUPT,),
    "InvalidRecordException": (_CORRUPT,),
    "RecordTooLargeException": (
        _Meaning(RecordTooLargeError, "a record exceeds the client's limit{where}: {said}"),
    ),
    "TimeoutException": (
        _Meaning(
            ReadTimeoutError,
            "the next record did not come in time{where} ({said}): a log that ends below the wanted end has "
            "an open transaction; otherwise check the brokers, and run this window again",
            words="Cannot fetch record",
        ),
        _NO_ANSWER,
    ),
    "DisconnectException": (_NO_ANSWER,),
    "ConfigException": (
        _Meaning(_NO_ANSWER.kind, _NO_ANSWER.message, words="No resolvable bootstrap"),
        _BAD_SETTING,
    ),
    "InvalidConfigurationException": (_BAD_SETTING,),
    "ArithmeticException": (
        _Meaning(
            ReadError,
            "a record is stamped beyond Spark's timestamps (64 bits of microseconds). Plan the window "
            "with a cutoff below it, or write it with stage_window, which keeps milliseconds",
            words="overflow",
        ),
    ),
    "KafkaIllegalStateException": (
        _Meaning(
            PartitionSetChangedError,
            "the topics have other partitions than when the window was planned ({said}): a topic may have been "
            "recreated. Plan the window again",
            words="start offsets don't match",
        ),
        _Meaning(
            ReadError,
            "some records could not be read{where}: they are no longer in the log, or did not come in time. Spark's log "
            "has the cause",
            words="data may have been lost",
        ),
    ),
}


def named_error(error: BaseException) -> KafkaOrderedOpsError | None:
    """Return the error of this package that made a Spark job fail; None if there is none.

    A task's error reaches the driver as text inside an error of Spark. The result has the type (and so `retriable`)
    and the message, but not the facts. For the Kafka connector, the deepest known exception decides.
    """
    if (failed := java_failure(error)) is not None:
        return failed
    text = str(error)
    matches = _NAMED.findall(text)
    for name, message in reversed(matches):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, KafkaOrderedOpsError):
            return kind(message.strip())
    if (wrong := wrong_python(text)) is not None:
        return wrong
    return _named_by_java(text) if _CONNECTOR.search(text) else None


def _named_by_java(text: str) -> KafkaOrderedOpsError | None:
    for name, said in reversed(_JAVA.findall(text)):
        for meaning in _MEANINGS.get(name, ()):
            if meaning.words in said:
                message = meaning.message.format(where=_where(text), said=said.strip() or name)
                return meaning.kind(message)
    return None


def _where(text: str) -> str:
    match = _OFFSETS.search(text)
    if match is None:
        return ""
    start, end, topic, partition = match.groups()
    return f" of {topic}[{partition}] from offset {start} to {end}"
