"""A Kafka in memory, to test with what plans, reads and commits windows.

It keeps what Kafka keeps: offsets with gaps, transactions and their markers, retention and compaction, topic
ids, groups with committed offsets and members, and the ledger with its records. Every guarantee that the package
gives on a broker it gives here, and the same scripts are run on both to hold that true.
"""

from kafka_ordered_ops.testing.kafka import InMemoryKafka
from kafka_ordered_ops.testing.kafka import Member as Member
from kafka_ordered_ops.testing.kafka import RecordState as RecordState
from kafka_ordered_ops.testing.kafka import StoredRecord as StoredRecord
from kafka_ordered_ops.testing.kafka import Transaction as Transaction
from kafka_ordered_ops.testing.log import TransactionState as TransactionState

# The others are what its methods return.
__all__ = ["InMemoryKafka"]
