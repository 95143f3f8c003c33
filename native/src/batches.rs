//! Record batches of the log, format 2 (Kafka 0.11 and later).
//!
//! Source of the format: <https://kafka.apache.org/documentation/#recordbatch>

use crate::codecs::Codecs;
use crate::columns::Filler;

/// Why records cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The batch is damaged.
    Unreadable(String),
    /// The batch is larger than allowed when it is unpacked; the size, where it is known.
    TooLarge(Option<u64>),
    /// The record at this offset has a header whose name is not UTF-8.
    HeaderName(i64),
}

fn damaged(what: &str) -> Fault {
    Fault::Unreadable(what.to_owned())
}

const HEADER_BYTES: usize = 61;
/// What the length of a batch does not count.
const UNCOUNTED_BYTES: usize = 12;
const CHECKED_FROM: usize = 21;
const CODEC: i16 = 0x07;
const LOG_APPEND_TIME: i16 = 0x08;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;
/// A record has a length, attributes, two deltas, two lengths and a number of headers, a byte each at least.
const RECORD_BYTES_MIN: usize = 7;

/// A batch that is complete.
pub struct Batch<'a> {
    bytes: &'a [u8],
    pub first: i64,
    /// Of its last record, also of one that compaction removed.
    pub last: i64,
    pub epoch: i32,
    pub producer: i64,
    attributes: i16,
    crc: u32,
    first_timestamp: i64,
    greatest_timestamp: i64,
    count: i32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the length was checked")
}

impl<'a> Batch<'a> {
    /// Split the first batch off; None: it is cut off, as the last one of a response may be.
    pub fn split(bytes: &'a [u8]) -> Result<Option<(Batch<'a>, &'a [u8])>, Fault> {
        if bytes.len() <= 16 {
            return Ok(None);
        }
        if bytes[16] != 2 {
            return Err(damaged(&format!("its batch has format {}, and is not of Kafka 0.11 or later", bytes[16])));
        }
        let length = usize::try_from(i32::from_be_bytes(field(bytes, 8))).unwrap_or(0);
        if length + UNCOUNTED_BYTES < HEADER_BYTES {
            return Err(damaged("the length of its batch is too small"));
        }
        let Some((bytes, rest)) = bytes.split_at_checked(length + UNCOUNTED_BYTES) else {
            return Ok(None);
        };
        let first = i64::from_be_bytes(field(bytes, 0));
        let delta = i32::from_be_bytes(field(bytes, 23));
        let last = first.checked_add(i64::from(delta)).filter(|_| first >= 0 && delta >= 0);
        let batch = Batch {
            bytes,
            first,
            last: last.ok_or_else(|| damaged("the offsets of its batch are out of range"))?,
            epoch: i32::from_be_bytes(field(bytes, 12)),
            crc: u32::from_be_bytes(field(bytes, 17)),
            attributes: i16::from_be_bytes(field(bytes, CHECKED_FROM)),
            first_timestamp: i64::from_be_bytes(field(bytes, 27)),
            greatest_timestamp: i64::from_be_bytes(field(bytes, 35)),
            producer: i64::from_be_bytes(field(bytes, 43)),
            count: i32::from_be_bytes(field(bytes, 57)),
        };
        Ok(Some((batch, rest)))
    }

    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    pub fn check(&self) -> Result<(), Fault> {
        if crc32c::crc32c(&self.bytes[CHECKED_FROM..]) == self.crc {
            Ok(())
        } else {
            Err(damaged("the checksum of its batch is wrong"))
        }
    }

    /// Of a control batch: whether it ends an aborted transaction.
    pub fn is_abort(&self) -> bool {
        let mut records = Cursor(&self.bytes[HEADER_BYTES..]);
        let mut key = || -> Result<Option<&[u8]>, Fault> {
            let mut record = records.sized()?;
            record.take(1)?;
            record.number()?;
            record.number()?;
            record.optional()
        };
        // A version, and then the kind: 0 is an abort, 1 a commit.
        key().ok().flatten().is_some_and(|key| key.len() >= 4 && key[2..4] == [0, 0])
    }

    /// Append the records whose offsets are wanted; `full` takes what is collected when there is enough of it.
    pub fn fill(
        &self,
        wanted: &[(i64, i64)],
        codecs: &mut Codecs,
        filler: &mut Filler,
        rows_max: usize,
        full: &mut impl FnMut(&mut Filler),
    ) -> Result<(), Fault> {
        let mut records = Cursor(codecs.open(self.attributes & CODEC, &self.bytes[HEADER_BYTES..])?);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        if count > records.0.len() / RECORD_BYTES_MIN {
            return Err(damaged("its batch has fewer records than it says"));
        }
        let is_log_append_time = self.attributes & LOG_APPEND_TIME != 0;
        let mut range = 0;
        for _ in 0..count {
            let mut record = records.sized()?;
            record.take(1)?;
            let timestamp = record.number()?;
            let delta = record.number()?;
            let offset = self.first.checked_add(delta).ok_or_else(|| damaged("an offset is out of range"))?;
            while range < wanted.len() && offset >= wanted[range].1 {
                range += 1;
            }
            match wanted.get(range) {
                None => break,
                Some((start, _)) if offset < *start => continue,
                Some(_) => {}
            }
            let is_enough = filler.rows() >= rows_max || filler.bytes() >= crate::columns::BATCH_BYTES;
            if is_enough || !filler.has_room(record.0.len()) {
                full(filler);
            }
            // The broker stamps the batch, and not its records.
            let at =
                if is_log_append_time { self.greatest_timestamp } else { self.first_timestamp.wrapping_add(timestamp) };
            filler.record(offset, at, is_log_append_time);
            if filler.projection().has_body() {
                record.body(offset, filler)?;
            }
        }
        Ok(())
    }
}

/// Reads the numbers and bytes of records.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    fn number(&mut self) -> Result<i64, Fault> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or_else(|| damaged("a record ends early"))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err(damaged("a number is too long"))
    }

    #[inline]
    fn take(&mut self, size: i64) -> Result<&'a [u8], Fault> {
        let size = usize::try_from(size).map_err(|_| damaged("a length is negative"))?;
        let (taken, rest) = self.0.split_at_checked(size).ok_or_else(|| damaged("a record ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn sized(&mut self) -> Result<Cursor<'a>, Fault> {
        let size = self.number()?;
        Ok(Cursor(self.take(size)?))
    }

    /// None for null.
    #[inline]
    fn optional(&mut self) -> Result<Option<&'a [u8]>, Fault> {
        match self.number()? {
            -1 => Ok(None),
            size => self.take(size).map(Some),
        }
    }

    #[inline]
    fn body(&mut self, offset: i64, filler: &mut Filler) -> Result<(), Fault> {
        let (key, value) = (self.optional()?, self.optional()?);
        if filler.projection().keys {
            filler.key(key);
        }
        if filler.projection().values {
            filler.value(value);
        }
        if !filler.projection().headers {
            return Ok(());
        }
        let count = usize::try_from(self.number()?).map_err(|_| damaged("a number of headers is negative"))?;
        // A header has two lengths.
        if count > self.0.len() / 2 {
            return Err(damaged("a record has fewer headers than it says"));
        }
        for _ in 0..count {
            let size = self.number()?;
            let name = self.take(size)?;
            std::str::from_utf8(name).map_err(|_| Fault::HeaderName(offset))?;
            filler.header(name, self.optional()?);
        }
        filler.end_headers(count > 0);
        Ok(())
    }
}
