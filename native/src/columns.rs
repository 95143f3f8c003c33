//! Columns of records, filled without an allocation for each record.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMillisecondArray, new_null_array,
};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

/// Bytes of keys, values and headers in one batch, about.
pub const BATCH_BYTES: usize = 2 << 20;
/// What a row takes besides: offset, timestamp, ends.
const ROW_BYTES: usize = 24;

/// A column of the package's record schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Topic,
    Partition,
    Offset,
    Timestamp,
    TimestampType,
    Key,
    Value,
    Headers,
}

impl Column {
    pub const ALL: [Column; 8] = [
        Column::Topic,
        Column::Partition,
        Column::Offset,
        Column::Timestamp,
        Column::TimestampType,
        Column::Key,
        Column::Value,
        Column::Headers,
    ];

    fn name(self) -> &'static str {
        match self {
            Column::Topic => "topic",
            Column::Partition => "partition",
            Column::Offset => "offset",
            Column::Timestamp => "timestamp",
            Column::TimestampType => "timestamp_type",
            Column::Key => "key",
            Column::Value => "value",
            Column::Headers => "headers",
        }
    }

    /// None: there is no such column.
    pub fn named(name: &str) -> Option<Column> {
        Column::ALL.into_iter().find(|column| column.name() == name)
    }

    fn field(self) -> Field {
        let (kind, nullable) = match self {
            Column::Topic => (DataType::Utf8, false),
            Column::Partition => (DataType::Int32, false),
            Column::Offset => (DataType::Int64, false),
            Column::Timestamp => (DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())), false),
            Column::TimestampType => (DataType::Int32, true),
            Column::Key | Column::Value => (DataType::Binary, true),
            Column::Headers => (DataType::List(header()), true),
        };
        Field::new(self.name(), kind, nullable)
    }
}

fn header_fields() -> Fields {
    Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Binary, true)])
}

fn header() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Struct(header_fields()), false))
}

/// What is wanted of each record.
#[derive(Clone, Debug)]
pub struct Projection {
    columns: Vec<Column>,
    schema: SchemaRef,
    pub keys: bool,
    pub values: bool,
    pub headers: bool,
}

impl Projection {
    pub fn new(columns: Vec<Column>) -> Projection {
        let fields: Vec<Field> = columns.iter().map(|column| column.field()).collect();
        let has = |column| columns.contains(&column);
        Projection {
            keys: has(Column::Key),
            values: has(Column::Value),
            headers: has(Column::Headers),
            schema: Arc::new(Schema::new(fields)),
            columns,
        }
    }

    /// Whether anything behind the offset of a record is wanted.
    pub fn has_body(&self) -> bool {
        self.keys || self.values || self.headers
    }
}

/// A null mask that costs nothing while there is no null.
#[derive(Default)]
pub(crate) struct Nulls(Option<NullBufferBuilder>);

impl Nulls {
    #[inline]
    pub(crate) fn valid(&mut self) {
        if let Some(builder) = &mut self.0 {
            builder.append_non_null();
        }
    }

    pub(crate) fn null(&mut self, rows_before: usize) {
        let builder = self.0.get_or_insert_with(|| {
            let mut builder = NullBufferBuilder::new(rows_before + 1);
            builder.append_n_non_nulls(rows_before);
            builder
        });
        builder.append_null();
    }

    pub(crate) fn mark(&mut self, rows_before: usize, is_valid: bool) {
        if is_valid { self.valid() } else { self.null(rows_before) }
    }

    pub(crate) fn truncate(&mut self, rows: usize) {
        if let Some(builder) = &mut self.0 {
            builder.truncate(rows);
        }
    }

    pub(crate) fn finish(&mut self) -> Option<NullBuffer> {
        self.0.take().and_then(|mut builder| builder.finish())
    }
}

/// Ends of rows in some other column, as Arrow wants them: from 0 on.
pub(crate) fn offsets(ends: &mut Vec<i32>) -> OffsetBuffer<i32> {
    let mut all = Vec::with_capacity(ends.len() + 1);
    all.push(0);
    all.append(ends);
    OffsetBuffer::new(ScalarBuffer::from(all))
}

/// Bytes of variable length.
#[derive(Default)]
struct Bytes {
    ends: Vec<i32>,
    data: Vec<u8>,
    nulls: Nulls,
    /// What the last batch had, and the next one will: memory is taken for it once it begins.
    expected: (usize, usize),
}

impl Bytes {
    #[inline]
    fn push(&mut self, bytes: Option<&[u8]>) {
        if self.ends.capacity() == 0 {
            self.ends.reserve_exact(self.expected.0);
            self.data.reserve_exact(self.expected.1);
        }
        match bytes {
            Some(bytes) => {
                self.data.extend_from_slice(bytes);
                self.nulls.valid();
            }
            None => self.nulls.null(self.ends.len()),
        }
        // Below 2 GiB: see `Filler::has_room`.
        self.ends.push(self.data.len() as i32);
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.truncate(rows);
        self.data.truncate(self.ends.last().map_or(0, |end| *end as usize));
        self.nulls.truncate(rows);
    }

    fn parts(&mut self) -> (OffsetBuffer<i32>, Buffer, Option<NullBuffer>) {
        self.expected = (self.ends.len(), self.data.len());
        let (mut ends, data) = (std::mem::take(&mut self.ends), std::mem::take(&mut self.data));
        (offsets(&mut ends), Buffer::from_vec(data), self.nulls.finish())
    }

    fn finish(&mut self) -> BinaryArray {
        let (offsets, data, nulls) = self.parts();
        BinaryArray::new(offsets, data, nulls)
    }
}

/// Collects the records of one partition.
pub struct Filler {
    projection: Projection,
    topic: String,
    partition: i32,
    /// The rows of the last batch.
    expected: usize,
    offsets: Vec<i64>,
    timestamps: Vec<i64>,
    types: Vec<i32>,
    keys: Bytes,
    values: Bytes,
    header_ends: Vec<i32>,
    header_nulls: Nulls,
    header_names: Bytes,
    header_values: Bytes,
}

impl Filler {
    pub fn new(projection: Projection, topic: &str, partition: i32) -> Filler {
        Filler {
            projection,
            topic: topic.to_owned(),
            partition,
            expected: 0,
            offsets: Vec::new(),
            timestamps: Vec::new(),
            types: Vec::new(),
            keys: Bytes::default(),
            values: Bytes::default(),
            header_ends: Vec::new(),
            header_nulls: Nulls::default(),
            header_names: Bytes::default(),
            header_values: Bytes::default(),
        }
    }

    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    pub fn rows(&self) -> usize {
        self.offsets.len()
    }

    /// The offset after the last record.
    pub fn end(&self) -> Option<i64> {
        self.offsets.last().map(|last| last + 1)
    }

    pub fn bytes(&self) -> usize {
        let data = [&self.keys, &self.values, &self.header_names, &self.header_values];
        data.iter().map(|bytes| bytes.data.len()).sum::<usize>() + ROW_BYTES * self.rows()
    }

    /// Whether a record of so many bytes can follow: the ends of rows are 32 bits wide.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes < i32::MAX as usize
    }

    #[inline]
    pub fn record(&mut self, offset: i64, timestamp: i64, is_log_append_time: bool) {
        if self.offsets.capacity() == 0 {
            self.types.reserve_exact(self.expected);
            self.offsets.reserve_exact(self.expected);
            self.timestamps.reserve_exact(self.expected);
        }
        self.types.push(i32::from(is_log_append_time));
        self.offsets.push(offset);
        self.timestamps.push(timestamp);
    }

    #[inline]
    pub fn key(&mut self, key: Option<&[u8]>) {
        self.keys.push(key);
    }

    #[inline]
    pub fn value(&mut self, value: Option<&[u8]>) {
        self.values.push(value);
    }

    /// The name is UTF-8.
    pub fn header(&mut self, name: &[u8], value: Option<&[u8]>) {
        self.header_names.push(Some(name));
        self.header_values.push(value);
    }

    /// All headers of a record have been given.
    pub fn end_headers(&mut self, has_any: bool) {
        if has_any {
            self.header_nulls.valid();
        } else {
            self.header_nulls.null(self.header_ends.len());
        }
        self.header_ends.push(self.header_names.ends.len() as i32);
    }

    /// Forget the records after so many: their batch is damaged.
    pub fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows);
        self.timestamps.truncate(rows);
        self.types.truncate(rows);
        self.keys.truncate(rows);
        self.values.truncate(rows);
        self.header_ends.truncate(rows);
        self.header_nulls.truncate(rows);
        let headers = self.header_ends.last().map_or(0, |end| *end as usize);
        self.header_names.truncate(headers);
        self.header_values.truncate(headers);
    }

    /// Take the records; None: there are none.
    pub fn finish(&mut self) -> Option<RecordBatch> {
        let rows = self.rows();
        if rows == 0 {
            return None;
        }
        let columns = self.projection.columns.clone();
        let arrays = columns.into_iter().map(|column| self.array(column, rows)).collect();
        // Also those that are no columns.
        (self.offsets, self.timestamps, self.types, self.expected) = (Vec::new(), Vec::new(), Vec::new(), rows);
        Some(RecordBatch::try_new(self.projection.schema.clone(), arrays).expect("columns are of the schema"))
    }

    fn array(&mut self, column: Column, rows: usize) -> ArrayRef {
        match column {
            Column::Topic => {
                let width = self.topic.len() as i32;
                let ends: Vec<i32> = (0..=rows as i32).map(|row| row * width).collect();
                let names = Buffer::from_vec(self.topic.as_bytes().repeat(rows));
                Arc::new(StringArray::new(OffsetBuffer::new(ScalarBuffer::from(ends)), names, None))
            }
            Column::Partition => Arc::new(Int32Array::from(vec![self.partition; rows])),
            Column::Offset => Arc::new(Int64Array::from(std::mem::take(&mut self.offsets))),
            Column::Timestamp => {
                let timestamps = std::mem::take(&mut self.timestamps);
                Arc::new(TimestampMillisecondArray::from(timestamps).with_timezone("UTC"))
            }
            Column::TimestampType => {
                // Never null: batches of format 2 say it of all their records.
                Arc::new(Int32Array::from(std::mem::take(&mut self.types)))
            }
            Column::Key => Arc::new(self.keys.finish()),
            Column::Value => Arc::new(self.values.finish()),
            Column::Headers => self.headers(rows),
        }
    }

    fn headers(&mut self, rows: usize) -> ArrayRef {
        if self.header_names.ends.is_empty() {
            self.header_ends.clear();
            self.header_nulls.finish();
            return new_null_array(&DataType::List(header()), rows);
        }
        let (ends, names, _) = self.header_names.parts();
        let names = StringArray::try_new(ends, names, None).expect("names were checked");
        let columns: Vec<ArrayRef> = vec![Arc::new(names), Arc::new(self.header_values.finish())];
        let items = StructArray::new(header_fields(), columns, None);
        let (ends, nulls) = (offsets(&mut std::mem::take(&mut self.header_ends)), self.header_nulls.finish());
        Arc::new(ListArray::new(header(), ends, Arc::new(items), nulls))
    }
}
