"""Write an invoice for each order, exactly once: python process_and_produce.py BOOTSTRAP TOPIC."""

import sys

from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.processing import NewRecord, Processor

bootstrap, topic = sys.argv[1:3]
invoices = f"{topic}.invoices"
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(invoices, num_partitions=2)])[invoices].result()


# [start produce]
def invoice(record):
    """Return the invoice of an order; no invoice for a deleted one."""
    if record.value is None:
        return None
    return NewRecord(invoices, record.key, b"invoice of " + record.value)


processor = Processor(bootstrap, max_concurrency=64)
results = processor.subscribe(
    topic, invoice, group_id=f"{topic}-invoices", produce="transactional"
)
for count, result in enumerate(results, start=1):
    print(f"{result.record}: {result.value}")
    # [end produce]
    if count == 10_000:
        processor.stop()
