"""A Kafka in memory for tests of code that plans, reads and commits windows.

It simulates Kafka's state: offsets with gaps, transactions and their markers, retention and compaction, topic
ids, groups with committed offsets and members, and the ledger with its records. It has the same guarantees as the
package on a broker: the same test scripts run on both.
"""

from kafka_ordered_ops.testing.kafka import InMemoryKafka
from kafka_ordered_ops.testing.kafka import Member as Member
from kafka_ordered_ops.testing.kafka import RecordState as RecordState
from kafka_ordered_ops.testing.kafka import StoredRecord as StoredRecord
from kafka_ordered_ops.testing.kafka import Transaction as Transaction
from kafka_ordered_ops.testing.log import TransactionState as TransactionState

# The others are return types of its methods.
__all__ = ["InMemoryKafka"]
