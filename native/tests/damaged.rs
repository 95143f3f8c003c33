//! Damaged responses: an error at most, in bounded time and memory; and undamaged ones, whole.

use std::io::Write;
use std::time::{Duration, Instant};

use kafka_ordered_ops_native::batches::Batch;
use kafka_ordered_ops_native::codecs::Codecs;
use kafka_ordered_ops_native::columns::{Column, Filler, Projection};
use kafka_ordered_ops_native::messages::{self, Versions};
use kafka_ordered_ops_native::wire::Writer;

/// The oldest version of Fetch, which names topics.
const VERSION: i16 = 12;
const UNPACKED_MAX: usize = 1 << 20;
/// More than any of the responses here should take.
const SLOW: Duration = Duration::from_millis(500);

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
}

fn number(value: i64, to: &mut Vec<u8>) {
    let mut bits = ((value << 1) ^ (value >> 63)) as u64;
    while bits >= 0x80 {
        to.push(bits as u8 | 0x80);
        bits >>= 7;
    }
    to.push(bits as u8);
}

fn optional(bytes: Option<&[u8]>, to: &mut Vec<u8>) {
    number(bytes.map_or(-1, |bytes| bytes.len() as i64), to);
    to.extend(bytes.unwrap_or_default());
}

fn records(random: &mut Random, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for record in 0..count as i64 {
        let mut bytes = vec![0];
        number(record * 3, &mut bytes);
        number(record, &mut bytes);
        for _key_and_value in 0..2 {
            let text = vec![b'a'; random.below(30)];
            optional((random.below(3) > 0).then_some(&text), &mut bytes);
        }
        let headers = random.below(3);
        number(headers as i64, &mut bytes);
        for _ in 0..headers {
            optional(Some(b"name"), &mut bytes);
            optional((random.below(2) > 0).then_some(b"value"), &mut bytes);
        }
        optional(Some(&bytes), &mut all);
    }
    all
}

fn packed(codec: i16, raw: &[u8]) -> Vec<u8> {
    match codec {
        1 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
        2 => {
            let block = snap::raw::Encoder::new().compress_vec(raw).unwrap();
            let mut framed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            framed.extend((block.len() as u32).to_be_bytes());
            framed.extend(block);
            framed
        }
        3 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
        4 => zstd::encode_all(raw, 1).unwrap(),
        _ => raw.to_vec(),
    }
}

/// A batch of records; some of them are damaged before they are packed.
fn batch(random: &mut Random, first: i64, is_damaged: bool) -> (Vec<u8>, usize) {
    let count = 1 + random.below(12);
    let codec = random.below(5) as i16;
    let mut raw = records(random, count);
    if is_damaged && random.below(3) == 0 {
        let at = random.below(raw.len());
        raw[at] = random.next() as u8;
    }
    let body = packed(codec, &raw);
    let mut checked = Vec::new();
    checked.extend(codec.to_be_bytes());
    checked.extend((count as i32 - 1).to_be_bytes());
    checked.extend(1_700_000_000_000i64.to_be_bytes());
    checked.extend(1_700_000_000_100i64.to_be_bytes());
    checked.extend(5i64.to_be_bytes());
    checked.extend(0i16.to_be_bytes());
    checked.extend(0i32.to_be_bytes());
    checked.extend((count as i32).to_be_bytes());
    checked.extend(body);
    let mut bytes = Vec::new();
    bytes.extend(first.to_be_bytes());
    bytes.extend((9 + checked.len() as i32).to_be_bytes());
    bytes.extend(3i32.to_be_bytes());
    bytes.push(2);
    bytes.extend(crc32c::crc32c(&checked).to_be_bytes());
    bytes.extend(checked);
    (bytes, count)
}

/// A response to a fetch, and how many records it has.
fn response(random: &mut Random, is_damaged: bool) -> (Vec<u8>, usize) {
    let mut writer = Writer::default();
    writer.i32(1);
    writer.tags();
    writer.i32(0);
    writer.i16(0);
    writer.i32(0);
    writer.count(1);
    writer.text("orders");
    let partitions = 1 + random.below(3);
    writer.count(partitions);
    let mut count = 0;
    for partition in 0..partitions {
        writer.i32(partition as i32);
        writer.i16(0);
        writer.i64(100);
        writer.i64(100);
        writer.i64(0);
        writer.count(1);
        writer.i64(7);
        writer.i64(0);
        writer.tags();
        writer.i32(random.below(3) as i32 - 1);
        let mut bytes = Vec::new();
        for number in 0..1 + random.below(3) {
            let (one, records) = batch(random, 20 * number as i64, is_damaged);
            bytes.extend(one);
            count += records;
        }
        writer.bytes(&bytes);
        writer.tags();
    }
    writer.tags();
    writer.tags();
    (writer.0, count)
}

/// Read a response as a reader does; return how many records were read, and how many errors there were.
fn read(response: &[u8], codecs: &mut Codecs, checks: bool) -> (usize, usize) {
    let Ok(fetched) = messages::read_fetch(VERSION, response) else {
        return (0, 1);
    };
    let (mut rows, mut errors) = (0, 0);
    for partition in fetched.partitions {
        let mut filler = Filler::new(Projection::new(Column::ALL.to_vec()), "orders", 0);
        let mut rest = partition.records;
        loop {
            match Batch::split(rest) {
                Ok(None) => break,
                Err(_) => {
                    errors += 1;
                    break;
                }
                Ok(Some((batch, behind))) => {
                    rest = behind;
                    if checks && batch.check().is_err() {
                        errors += 1;
                        continue;
                    }
                    if batch.is_control() {
                        batch.is_abort();
                        continue;
                    }
                    let mut before = filler.rows();
                    let filled = batch.fill(&[(0, i64::MAX)], codecs, &mut filler, 7, &mut |filler| {
                        before = 0;
                        rows += filler.finish().map_or(0, |records| records.num_rows());
                    });
                    if filled.is_err() {
                        errors += 1;
                        filler.truncate(before);
                    }
                }
            }
        }
        rows += filler.finish().map_or(0, |records| records.num_rows());
    }
    (rows, errors)
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(4) {
        0 => {
            let size = random.below(bytes.len());
            bytes.truncate(size);
        }
        1 => {
            let at = random.below(bytes.len());
            for (byte, other) in bytes[at..].iter_mut().zip(random.next().to_be_bytes()) {
                *byte = other;
            }
        }
        _ => {
            for _ in 0..1 + random.below(5) {
                let at = random.below(bytes.len());
                bytes[at] = [0, 0x7f, 0x80, 0xff, random.next() as u8][random.below(5)];
            }
        }
    }
}

/// How many responses: more of them at night.
fn count() -> usize {
    std::env::var("DAMAGED_RESPONSES").ok().and_then(|count| count.parse().ok()).unwrap_or(200_000)
}

#[test]
fn undamaged_responses_are_read_whole() {
    let mut random = Random(11);
    let mut codecs = Codecs::new(UNPACKED_MAX);
    for _ in 0..2_000 {
        let (bytes, records) = response(&mut random, false);
        assert_eq!(read(&bytes, &mut codecs, true), (records, 0));
    }
}

#[test]
fn damaged_responses_are_errors_at_most() {
    let mut random = Random(7);
    let mut codecs = Codecs::new(UNPACKED_MAX);
    let mut errors = 0;
    for _ in 0..count().div_ceil(20) {
        let (good, _) = response(&mut random, true);
        for number in 0..20 {
            let mut bytes = good.clone();
            damage(&mut random, &mut bytes);
            let began = Instant::now();
            // Checksums would hide from the decoder what is damaged.
            errors += read(&bytes, &mut codecs, number % 4 == 0).1;
            assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());
        }
    }
    assert!(errors > count() / 10, "{errors}");
}

#[test]
fn other_damaged_responses_are_errors_at_most() {
    let mut random = Random(13);
    let versions = Versions { fetch: 16, metadata: 12 };
    for _ in 0..count() {
        let mut bytes = vec![0; random.below(200)];
        bytes.iter_mut().for_each(|byte| *byte = [0, 1, 2, 0x7f, 0xff, random.next() as u8][random.below(6)]);
        let _ = messages::read_metadata(versions, &bytes);
        let _ = messages::read_api_versions(&bytes);
        let _ = messages::read_sasl_handshake(&bytes);
        let _ = messages::read_sasl_authenticate(&bytes);
        let _ = messages::read_fetch(16, &bytes);
    }
}
