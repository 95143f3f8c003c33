//! Messages of Protobuf as columns.
//!
//! Only what serializers write is decoded here. Anything else, be it wrong or merely unusual, as a field that is there
//! twice, is left to the reader in Python: its row has any value, and is named.

use std::fmt::Display;
use std::io::Write;
use std::str::from_utf8;

use super::column::Column;
use super::frames::zigzag;
use super::protobuf_plan::{Field, Kind, Message, Shape};
use super::wire::{Doubtful, Read, SIZED, Value, Wire};

/// Fields that the messages of a record may have, whatever its length, and for each of its bytes.
const FIELDS_MIN: i64 = 20_000;
const FIELDS_PER_BYTE: i64 = 16;
/// Of a map: an entry, its key and its value.
const ENTRY_FIELDS: i64 = 3;
const SECOND: i64 = 1_000_000_000;

/// An entry of a map, until those of its message are sorted.
#[derive(Clone, Copy)]
struct Entry<'a> {
    field: usize,
    key: Key<'a>,
    item: Value<'a>,
}

/// The bytes of a text, or a number; they sort as Python's keys.
type Key<'a> = (u64, &'a [u8]);

/// What messages of a row share.
#[derive(Default)]
pub struct Scratch<'a> {
    entries: Vec<Entry<'a>>,
    /// A key of a map, or the number of an enum.
    text: Vec<u8>,
    /// Fields that may still be filled.
    left: i64,
}

impl Scratch<'_> {
    fn spend(&mut self, fields: i64) -> Read<()> {
        self.left -= fields;
        if self.left < 0 { Err(Doubtful) } else { Ok(()) }
    }
}

/// Append a message as a row of a column; what it appended is to be cut off after an error.
pub fn append<'a>(plan: &Message, column: &mut Column, bytes: &'a [u8], scratch: &mut Scratch<'a>) -> Read<()> {
    scratch.entries.clear();
    scratch.left = FIELDS_MIN + FIELDS_PER_BYTE * bytes.len() as i64;
    let row = column.rows();
    let Column::Struct(column) = column else { return Err(Doubtful) };
    message(plan, &mut column.columns, row, bytes, scratch)?;
    column.complete();
    Ok(())
}

/// Append a row to the columns of a message.
fn message<'a>(
    plan: &Message,
    columns: &mut [Column],
    row: usize,
    bytes: &'a [u8],
    scratch: &mut Scratch<'a>,
) -> Read<()> {
    scratch.spend(1 + plan.fields.len() as i64)?;
    let first_entry = scratch.entries.len();
    let mut oneofs = 0;
    let mut wire = Wire(bytes);
    while !wire.0.is_empty() {
        let (number, kind) = wire.tag()?;
        let Some(index) = plan.find(number) else {
            wire.value(kind)?;
            continue;
        };
        let (Some(field), Some(column)) = (plan.fields.get(index), columns.get_mut(index)) else {
            return Err(Doubtful);
        };
        match field.shape {
            Shape::Single => {
                let value = known(field, kind, &mut wire)?;
                if field.kind.ignores(value.bits) {
                    continue;
                }
                // Of a field that is there twice, and of a oneof, the last value is taken, or messages are merged.
                if column.rows() != row || oneofs & field.oneof != 0 {
                    return Err(Doubtful);
                }
                oneofs |= field.oneof;
                push(&field.kind, column, value, scratch)?;
            }
            Shape::List => list(field, column, kind, &mut wire, scratch)?,
            Shape::Map(ref key) => {
                let entry = entry(key, &field.kind, known(field, kind, &mut wire)?.bytes)?;
                scratch.spend(ENTRY_FIELDS + field.width)?;
                scratch.entries.push(Entry { field: index, ..entry });
            }
        }
    }
    if scratch.entries.len() > first_entry {
        maps(plan, columns, first_entry, scratch)?;
    }
    for (field, column) in plan.fields.iter().zip(columns) {
        end(field, column, row, scratch)?;
    }
    Ok(())
}

#[inline(always)]
fn known<'a>(field: &Field, kind: u8, wire: &mut Wire<'a>) -> Read<Value<'a>> {
    // The library takes a value of another type for that of an unknown field.
    if kind == field.wire { wire.value(kind) } else { Err(Doubtful) }
}

/// End the row of a field, whose values have been appended.
#[inline]
fn end(field: &Field, column: &mut Column, row: usize, scratch: &mut Scratch) -> Read<()> {
    match column {
        Column::List(list) if matches!(field.shape, Shape::List) => list.complete()?,
        Column::Map(map) => map.complete(0, None)?,
        _ if column.rows() > row => {}
        _ if field.is_required => return Err(Doubtful),
        _ if field.has_presence => {
            scratch.spend(field.width)?;
            column.null();
        }
        _ => push(&field.kind, column, Value::default(), scratch)?,
    }
    Ok(())
}

/// Append one item, or all items of a packed list.
fn list<'a>(field: &Field, column: &mut Column, kind: u8, wire: &mut Wire<'a>, scratch: &mut Scratch<'a>) -> Read<()> {
    let Column::List(list) = column else { return Err(Doubtful) };
    if kind == field.wire {
        let value = wire.value(kind)?;
        if !field.kind.ignores(value.bits) {
            push(&field.kind, &mut list.items, value, scratch)?;
        }
    } else if kind == SIZED {
        let mut packed = Wire(wire.bytes()?);
        while !packed.0.is_empty() {
            let value = packed.value(field.wire)?;
            if !field.kind.ignores(value.bits) {
                push(&field.kind, &mut list.items, value, scratch)?;
            }
        }
    } else {
        return Err(Doubtful);
    }
    Ok(())
}

fn entry<'a>(key: &Kind, item: &Kind, bytes: &'a [u8]) -> Read<Entry<'a>> {
    // An entry with another field is none.
    let [key_value, item_value] = fields([key, item], bytes, false)?;
    if let Kind::Enum(names) = item
        && names.is_closed
        && item_value.is_none_or(|value| item.ignores(value.bits))
    {
        return Err(Doubtful);
    }
    let (key_value, item_value) = (key_value.unwrap_or_default(), item_value.unwrap_or_default());
    let number = match key {
        Kind::Text => {
            from_utf8(key_value.bytes).map_err(|_| Doubtful)?;
            0
        }
        Kind::Bool => u64::from(key_value.bits != 0),
        Kind::Uint32 | Kind::Fixed32 => u64::from(key_value.bits as u32),
        Kind::Uint64 | Kind::Fixed64 => key_value.bits,
        Kind::Int32 | Kind::Sfixed32 => signed_key(i64::from(key_value.bits as i32)),
        Kind::Sint32 => signed_key(i64::from(short_zigzag(key_value.bits))),
        Kind::Int64 | Kind::Sfixed64 => signed_key(key_value.bits as i64),
        Kind::Sint64 => signed_key(zigzag(key_value.bits)),
        _ => return Err(Doubtful),
    };
    Ok(Entry { field: 0, key: (number, key_value.bytes), item: item_value })
}

/// Return a number so that unsigned ones sort as signed ones.
fn signed_key(key: i64) -> u64 {
    key as u64 ^ 1 << 63
}

fn short_zigzag(bits: u64) -> i32 {
    let bits = bits as u32;
    (bits >> 1) as i32 ^ -((bits & 1) as i32)
}

/// Append the entries of the maps of a message, sorted by their keys.
fn maps<'a>(plan: &Message, columns: &mut [Column], first: usize, scratch: &mut Scratch<'a>) -> Read<()> {
    let entries = &mut scratch.entries[first..];
    entries.sort_unstable_by_key(|entry| (entry.field, entry.key));
    // Of equal keys, the last one counts.
    if entries.windows(2).any(|pair| (pair[0].field, pair[0].key) == (pair[1].field, pair[1].key)) {
        return Err(Doubtful);
    }
    for at in first..scratch.entries.len() {
        let Entry { field, key: (number, text), item } = scratch.entries[at];
        let (field, column) = (&plan.fields[field], &mut columns[field]);
        let (Shape::Map(key), Column::Map(map)) = (&field.shape, column) else { return Err(Doubtful) };
        map.keys.push(match key {
            Kind::Text => text,
            Kind::Bool if number == 0 => b"false",
            Kind::Bool => b"true",
            Kind::Uint32 | Kind::Fixed32 | Kind::Uint64 | Kind::Fixed64 => decimal(number, &mut scratch.text),
            _ => decimal(signed_key(number as i64) as i64, &mut scratch.text),
        })?;
        push(&field.kind, &mut map.values, item, scratch)?;
        map.complete_entry()?;
    }
    scratch.entries.truncate(first);
    Ok(())
}

/// Append a value.
fn push<'a>(kind: &Kind, column: &mut Column, value: Value<'a>, scratch: &mut Scratch<'a>) -> Read<()> {
    let bits = value.bits;
    match (kind, column) {
        (Kind::Int64 | Kind::Sfixed64, Column::Long(column)) => column.push(bits as i64),
        (Kind::Int32 | Kind::Sfixed32, Column::Int(column)) => column.push(bits as i32),
        (Kind::Text, Column::Bytes(column)) => {
            from_utf8(value.bytes).map_err(|_| Doubtful)?;
            column.push(value.bytes)?;
        }
        (Kind::Bytes, Column::Bytes(column)) => column.push(value.bytes)?,
        (Kind::Double, Column::Double(column)) => column.push(f64::from_bits(bits)),
        (Kind::Bool, Column::Boolean(column)) => column.push(bits != 0),
        (Kind::Enum(names), Column::Bytes(column)) => match names.name(bits as i32) {
            Some(name) => column.push(name.as_bytes())?,
            None => column.push(decimal(bits as i32, &mut scratch.text))?,
        },
        (Kind::Message(plan), Column::Struct(column)) => {
            let row = column.rows();
            message(plan, &mut column.columns, row, value.bytes, scratch)?;
            column.complete();
        }
        (Kind::Message(plan), Column::Boolean(column)) => {
            message(plan, &mut [], 0, value.bytes, scratch)?;
            column.push(true);
        }
        (Kind::Timestamp, Column::Long(column)) => column.push(timestamp(value.bytes)?),
        (Kind::Duration, Column::Long(column)) => column.push(duration(value.bytes)?),
        (Kind::Wrapper(inner), column) => {
            let [value] = fields([inner], value.bytes, true)?;
            push(inner, column, value.unwrap_or_default(), scratch)?;
        }
        (Kind::Sint64, Column::Long(column)) => column.push(zigzag(bits)),
        (Kind::Sint32, Column::Int(column)) => column.push(short_zigzag(bits)),
        (Kind::Uint64 | Kind::Fixed64, Column::U64(column)) => column.push(bits),
        (Kind::Uint32 | Kind::Fixed32, Column::U32(column)) => column.push(bits as u32),
        (Kind::Float, Column::Float(column)) => column.push(f32::from_bits(bits as u32)),
        _ => return Err(Doubtful),
    }
    Ok(())
}

/// Return the digits of a number.
fn decimal(number: impl Display, buffer: &mut Vec<u8>) -> &[u8] {
    buffer.clear();
    // A vector takes all that is written to it.
    let _ = write!(buffer, "{number}");
    buffer
}

// --- types of Google ------------------------------------------------------------------------------------------------

/// Return the values of fields with the numbers 1, 2 and so on; `has_others`: there may be more fields.
fn fields<'a, const N: usize>(kinds: [&Kind; N], bytes: &'a [u8], has_others: bool) -> Read<[Option<Value<'a>>; N]> {
    let mut values = [None; N];
    let mut wire = Wire(bytes);
    while !wire.0.is_empty() {
        let (number, found) = wire.tag()?;
        let value = wire.value(found)?;
        let index = number as usize - 1;
        if let Some(kind) = kinds.get(index) {
            if found != kind.wire() || values[index].is_some() {
                return Err(Doubtful);
            }
            values[index] = Some(value);
        } else if !has_others {
            return Err(Doubtful);
        }
    }
    Ok(values)
}

fn timestamp(bytes: &[u8]) -> Read<i64> {
    let (seconds, nanos) = seconds(bytes)?;
    if !(0..SECOND).contains(&nanos) { Err(Doubtful) } else { nanoseconds(seconds, nanos) }
}

fn duration(bytes: &[u8]) -> Read<i64> {
    let (seconds, nanos) = seconds(bytes)?;
    let has_other_signs = (seconds < 0 && nanos > 0) || (nanos < 0 && seconds > 0);
    if nanos.abs() >= SECOND || has_other_signs { Err(Doubtful) } else { nanoseconds(seconds, nanos) }
}

fn seconds(bytes: &[u8]) -> Read<(i64, i64)> {
    let [seconds, nanos] = fields([&Kind::Int64, &Kind::Int32], bytes, true)?;
    Ok((seconds.unwrap_or_default().bits as i64, i64::from(nanos.unwrap_or_default().bits as i32)))
}

fn nanoseconds(seconds: i64, nanos: i64) -> Read<i64> {
    let nanoseconds = i128::from(seconds) * i128::from(SECOND) + i128::from(nanos);
    i64::try_from(nanoseconds).map_err(|_| Doubtful)
}
