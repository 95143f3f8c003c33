//! Random bytes for the decoders of Protobuf and JSON: whole rows, each as if it were alone, in bounded memory.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, TimeUnit};
use kafka_ordered_ops_native::decode::frames::Framing;
use kafka_ordered_ops_native::decode::input::Input;
use kafka_ordered_ops_native::decode::json::Plan;
use kafka_ordered_ops_native::decode::protobuf_plan::{Enum, Field as Part, Kind, Message, Shape};
use kafka_ordered_ops_native::decode::values::{Decoded, Json, Protobuf};

/// For each byte of the values: 16 fields of at most 8 bytes and a bit, and what vectors keep in store.
const BYTES_PER_BYTE: usize = 16 * 9 * 2;
/// For each row: its own fields, twice.
const BYTES_PER_ROW: usize = 1 << 10;

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn pick<'a>(&mut self, words: &[&'a [u8]]) -> &'a [u8] {
        words[self.below(words.len())]
    }
}

fn field(name: &str, kind: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, kind, true))
}

fn list(kind: DataType) -> DataType {
    DataType::List(field("item", kind))
}

fn map(kind: DataType) -> DataType {
    let entries = vec![Arc::new(Field::new("key", DataType::Utf8, false)), field("value", kind)];
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries.into()), false)), false)
}

fn moment() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn cases() -> u64 {
    std::env::var("DAMAGED_RESPONSES").ok().and_then(|count| count.parse().ok()).unwrap_or(200_000)
}

/// Check random values; return how many were decoded, and how many were left to Python.
fn check(
    values: impl Fn(&mut Random) -> Vec<u8>,
    decode: impl Fn(Input) -> Result<Decoded, String>,
    kind: &DataType,
) -> (usize, usize) {
    let decoded = |values: &[Vec<u8>]| -> (ArrayRef, Vec<usize>) {
        let (mut offsets, mut data) = (0_i64.to_le_bytes().to_vec(), Vec::new());
        for value in values {
            data.extend(value);
            offsets.extend((data.len() as i64).to_le_bytes());
        }
        decode(Input { data: &data, offsets: &offsets, width: 8, base: 0, validity: None, first: 0 }).expect("an array")
    };
    let (mut all, mut left_rows) = (0, 0);
    for seed in 1..=cases() / 20 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rows: Vec<_> = (0..4).map(|_| values(&mut random)).collect();
        let (array, left) = decoded(&rows);
        array.to_data().validate_full().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((array.len(), array.data_type()), (rows.len(), kind), "seed {seed}");
        let size: usize = rows.iter().map(Vec::len).sum();
        assert!(
            array.get_buffer_memory_size() < size * BYTES_PER_BYTE + rows.len() * BYTES_PER_ROW,
            "seed {seed}: {} bytes",
            array.get_buffer_memory_size()
        );
        for (row, value) in rows.iter().enumerate() {
            let (alone, left_alone) = decoded(std::slice::from_ref(value));
            assert_eq!(left.contains(&row), !left_alone.is_empty(), "seed {seed}, row {row}");
            assert_eq!(alone.to_data(), array.slice(row, 1).to_data(), "seed {seed}, row {row}");
        }
        all += rows.len();
        left_rows += left.len();
    }
    (all - left_rows, left_rows)
}

#[test]
fn damaged_messages_leave_whole_rows() {
    let inner = Arc::new(Message::new(vec![
        Part::new(1, Kind::Int32, Shape::Single),
        Part { has_presence: true, ..Part::new(2, Kind::Text, Shape::Single) },
        Part::new(3, Kind::Sint64, Shape::List),
    ]));
    let names = Arc::new(Enum::new(vec![(0, "ZERO".into()), (1, "ONE".into())], false));
    let message = Arc::new(Message::new(vec![
        Part::new(1, Kind::Int64, Shape::Single),
        Part::new(2, Kind::Text, Shape::Single),
        Part { has_presence: true, oneof: 1, ..Part::new(3, Kind::Message(inner.clone()), Shape::Single) },
        Part { has_presence: true, oneof: 1, ..Part::new(4, Kind::Timestamp, Shape::Single) },
        Part::new(5, Kind::Message(inner.clone()), Shape::List),
        Part::new(6, Kind::Message(inner), Shape::Map(Kind::Text)),
        Part::new(7, Kind::Double, Shape::List),
        Part::new(8, Kind::Enum(names), Shape::List),
        Part { has_presence: true, ..Part::new(9, Kind::Wrapper(Box::new(Kind::Bool)), Shape::Single) },
    ]));
    let part = DataType::Struct(
        vec![field("a", DataType::Int32), field("b", DataType::Utf8), field("c", list(DataType::Int64))].into(),
    );
    let kinds = [
        DataType::Int64,
        DataType::Utf8,
        part.clone(),
        moment(),
        list(part.clone()),
        map(part),
        list(DataType::Float64),
        list(DataType::Utf8),
        DataType::Boolean,
    ];
    let kind = DataType::Struct(kinds.into_iter().map(|kind| field("x", kind)).collect::<Vec<_>>().into());
    let protobuf = Protobuf { kind: kind.clone(), message, framing: Framing::None };
    // Mostly tags of the fields above, and short lengths.
    let bytes = |random: &mut Random| -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..random.below(12) {
            bytes.push((random.below(10) << 3 | [0, 1, 2, 2, 2, 5][random.below(6)]) as u8);
            let length = random.below(9);
            bytes.push(length as u8);
            for _ in 0..length {
                bytes.push(if random.below(4) > 0 { random.below(32) as u8 } else { random.next() as u8 });
            }
        }
        bytes
    };
    let (decoded, left) = check(bytes, |input| protobuf.decode(input, &[]), &kind);
    assert!(decoded > left / 50 && left > decoded / 50, "{decoded} decoded, {left} left");
}

#[test]
fn damaged_texts_leave_whole_rows() {
    let part = DataType::Struct(vec![field("a", DataType::Int32), field("b", DataType::Utf8)].into());
    let kinds = [
        ("a", DataType::UInt8),
        ("b", DataType::Utf8),
        ("c", part.clone()),
        ("d", list(part.clone())),
        ("e", map(part)),
        ("f", DataType::Decimal128(9, 2)),
        ("g", moment()),
        ("h", DataType::Binary),
        ("i", list(list(DataType::Float32))),
    ];
    let kind = DataType::Struct(kinds.into_iter().map(|(name, kind)| field(name, kind)).collect::<Vec<_>>().into());
    let plan = Plan::new(&kind, false).expect("types that are known");
    let json = Json { kind: kind.clone(), plan, framing: Framing::None };
    let words: [&[u8]; 28] = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"a\":",
        b"\"b\":\"x\"",
        b"\"c\":{\"a\":1}",
        b"\"d\":[{}]",
        b"\"e\":{\"k\":{}}",
        b"\"f\":1.5",
        b"\"g\":\"2026-02-28T03:04:05Z\"",
        b"\"h\":\"AAE=\"",
        b"\"i\":[[1e3],[]]",
        b"\"z\":{\"y\":[1]}",
        b"null",
        b"1",
        b"-0",
        b"\"\\ud83d\\ude00\"",
        b"\"\\u00e9\"",
        b"\\",
        b"\"",
        b"\xc3",
        b"\xa9",
        b" ",
        b"true",
        b"\x00",
    ];
    let members = &words[6..16];
    let text = |random: &mut Random| -> Vec<u8> {
        let mut bytes = b"{".to_vec();
        let count = random.below(5);
        for number in 0..count {
            let word = if random.below(12) == 0 { random.pick(&words) } else { random.pick(members) };
            bytes.extend(word);
            if word.ends_with(b":") {
                bytes.extend(random.pick(&words));
            }
            bytes.extend(if number + 1 < count { b",".as_slice() } else { b"" });
        }
        bytes.push(b'}');
        if random.below(4) == 0 {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        bytes
    };
    let (decoded, left) = check(text, |input| json.decode(input), &kind);
    assert!(decoded > left / 50 && left > decoded / 50, "{decoded} decoded, {left} left");
}
