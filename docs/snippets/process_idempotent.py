"""Write invoices without transactions, in batches by partition: python process_idempotent.py BOOTSTRAP TOPIC."""

import sys

from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.processing import NewRecord, Processor

bootstrap, topic = sys.argv[1:3]
invoices = f"{topic}.copies"
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(invoices, num_partitions=2)])[invoices].result()


# [start idempotent]
def copy_all(records):
    """Return the copies of consecutive orders of one partition, one for each."""
    return [NewRecord(invoices, record.key, record.value) for record in records]


processor = Processor(bootstrap, ordering="partition")
results = processor.subscribe(
    f"^{topic}$",
    copy_all,
    exclude="^.*[.]copies",
    group_id=f"{topic}-copies",
    produce="idempotent",
    batch_size=100,
)
for count, result in enumerate(results, start=1):
    [copy] = result.produced
    print(f"{result.record} is {copy.topic}[{copy.partition}]@{copy.offset}")
    # [end idempotent]
    if count == 10_000:
        processor.stop()
