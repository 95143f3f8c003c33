"""Show intervals, a late record, a gap and a sweep: python intervals.py BOOTSTRAP TOPIC."""

import sys
from datetime import datetime

import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import OrderedWindows, Window, stage_window

bootstrap, topic = sys.argv[1], f"{sys.argv[2]}-intervals"
admin = AdminClient({"bootstrap.servers": bootstrap})
new = NewTopic(topic, num_partitions=1, config={"retention.ms": "-1"})
admin.create_topics([new])[topic].result()
producer = Producer({"bootstrap.servers": bootstrap})
windows = OrderedWindows(bootstrap, group_id=f"{topic}-hourly")


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-20T{time}:00Z")


def write(*times: str) -> None:
    for time in times:
        producer.produce(topic, value=time, timestamp=int(at(time).timestamp() * 1000))
    producer.flush()


def run(window_id: str, window: Window) -> None:
    plan = windows.plan(window, window_id)
    staged = stage_window(plan, windows.settings, "out/intervals")
    windows.commit(plan, staged)
    rows = pq.read_table(f"{staged.final_path}/part-00000.parquet").to_pylist()
    print(
        window_id,
        *(row["value"].decode() + " late" * row["late"] for row in rows),
        sep="  ",
    )


# [start example]
write("08:55", "09:05", "10:05", "09:40", "11:20")
run(
    "09",
    Window(topic, since=at("09:00"), cutoff=at("10:00"), starting_offsets="earliest"),
)

write("09:50", "08:30", "10:45")
run("10", Window(topic, since=at("10:00"), cutoff=at("11:00")))

for gap in windows.gaps():
    before = gap.to_json()["cutoff"]
    print(f"gap  before {before}: {gap.offsets} to {gap.offsets_at_most} offsets")

run("rest", Window(topic, cutoff=at("11:00"), sweep=True))
# [end example]
windows.close()
