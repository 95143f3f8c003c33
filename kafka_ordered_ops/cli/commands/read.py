"""``read``: records of topics, in one order over all partitions."""

from __future__ import annotations

import sys
from typing import Final

from kafka_ordered_ops.cli.options.options import command
from kafka_ordered_ops.cli.options.reading import Sheet, Source
from kafka_ordered_ops.cli.records.choices import OnBad
from kafka_ordered_ops.cli.show.screen import Screen

READ_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops read orders payments -b localhost:9092 --from -1h
  kafka-ordered-ops read orders -b localhost:9092 --cutoff 2026-11-20T12:00:00Z --values json | jq .value.customer
  kafka-ordered-ops read orders -b localhost:9092 --values avro -X schema.registry.url=http://localhost:8081
  kafka-ordered-ops read '^orders-.*' -b localhost:9092 --follow --group billing > orders.jsonl
  kafka-ordered-ops read orders -b localhost:9092 --format parquet -o orders.parquet

Exit codes: 0 done; 1 failed, retry; 2 usage; 4 failed, retrying does not help; 130 Ctrl-C; 141 the reader of stdout is gone."""


@command
def read(screen: Screen, source: Source, sheet: Sheet) -> None:
    """Read topics in one order over all partitions, to stdout or a file."""
    is_terminal = sheet.output is None and sys.stdout.isatty()
    source.check()
    sheet.check(source.group_id, as_json=screen.as_json, is_terminal=is_terminal)
    settings = source.reported_settings(screen)

    from kafka_ordered_ops.cli.records.copying import copy
    from kafka_ordered_ops.cli.records.decoded import DecodedRecords, DecodedWriter
    from kafka_ordered_ops.cli.records.formats import writing
    from kafka_ordered_ops.cli.records.target import opened
    from kafka_ordered_ops.cli.show.reading import watching

    view_of = watching(
        screen,
        ", ".join(source.topic),
        table=sheet.table,
        follow=source.follow,
        shares_terminal=is_terminal,
    )
    on_bad = sheet.on_bad or OnBad.FAIL
    decoder = sheet.decoder(source.topic, settings)
    records = None if decoder is None else DecodedRecords(decoder, sheet.form, on_bad)
    with (
        view_of as view,
        # Closed after the file, so that the last commit is of what is in it.
        source.reader(settings, view.progress) as reader,
        opened(sheet.output, follow=source.follow, is_terminal=is_terminal) as target,
        writing(
            target,
            sheet.form,
            reader.schema if records is None else records.schema(reader.schema),
            sheet.shown(sheet.keys),
            sheet.shown(sheet.values),
            guards_cells=sheet.guard_cells,
            on_bad=on_bad,
        ) as form,
    ):
        writer = form if records is None else DecodedWriter(form, records)
        for note in () if reader.plan is None else reader.plan.notes:
            screen.say(f"note: {note}")
        copied = copy(reader, writer, target, view, follow=source.follow, limit=sheet.limit)
    if copied.is_interrupted:
        raise KeyboardInterrupt
    if screen.as_json:
        counts = {"records": copied.records, "late": copied.late}
        if copied.skipped:
            counts["skipped"] = copied.skipped
        screen.emit({**counts, "format": sheet.form, "output": str(sheet.output)})
    else:
        screen.say(str(copied))
