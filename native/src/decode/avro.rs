//! Values of Avro to columns, as a plan says.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_buffer::i256;

use crate::decode::column::{Column, Map};
use crate::decode::cursor::{Cursor, Failed, Fault, bad};

/// Items without bytes in one array: a few bytes could ask for gigabytes.
const EMPTY_ITEMS_MAX: usize = 1 << 10;
/// The bytes of a decimal, which may begin with more of its sign.
const DECIMAL_BYTES_MAX: usize = 40;
/// Keys of a map that are compared one by one.
const FEW_KEYS: usize = 8;

/// What is written, and what it becomes.
#[derive(Debug)]
pub enum Step {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    Text,
    Fixed(usize),
    /// Bytes, or so many of them.
    Decimal {
        size: Option<usize>,
        most: i256,
        precision: u8,
    },
    TextUuid,
    BytesUuid,
    /// A number from 0 to below `day`.
    Time {
        is_long: bool,
        day: i64,
    },
    /// Texts, or why there is none.
    Symbols(Vec<Result<String, String>>),
    /// The column for each written field; None: it is skipped.
    Record(Vec<(Option<usize>, Arc<Step>)>),
    Array {
        item: Arc<Step>,
        is_empty: bool,
    },
    Map(Arc<Step>),
    Union(Vec<Arc<Step>>),
    /// Only this column of a struct has a value.
    Member(usize, Arc<Step>),
    Refused(String),
    /// Nothing is written: these bytes are read instead.
    Default(Vec<u8>, Arc<Step>),
}

/// Read a whole value into a row of a column; after an error, the row is there in part.
pub fn read_whole(step: &Step, column: &mut Column, data: &[u8]) -> Result<(), Failed> {
    let mut cursor = Cursor::new(data);
    read(step, column, &mut cursor)?;
    match cursor.left() {
        0 => Ok(()),
        left => Err(bad(format!("{left} bytes follow the record"))),
    }
}

#[cold]
fn unfit(step: &Step) -> Failed {
    let text: String = format!("{step:?}").chars().take(100).collect();
    Box::new(Fault::Plan(format!("a column of another type: {text}")))
}

fn read<'a>(step: &Step, column: &mut Column, cursor: &mut Cursor<'a>) -> Result<(), Failed> {
    match (step, column) {
        (Step::Null, column) => column.null(),
        (Step::Boolean, Column::Boolean(column)) => column.push(cursor.boolean()?),
        (Step::Int, Column::Int(column)) => column.push(cursor.int()?),
        (Step::Int, Column::Long(column)) => column.push(cursor.int()?.into()),
        (Step::Int, Column::Float(column)) => column.push(cursor.int()? as f32),
        (Step::Int, Column::Double(column)) => column.push(cursor.int()?.into()),
        (Step::Long, Column::Long(column)) => column.push(cursor.long()?),
        // By way of a double, as in Python.
        (Step::Long, Column::Float(column)) => column.push(cursor.long()? as f64 as f32),
        (Step::Long, Column::Double(column)) => column.push(cursor.long()? as f64),
        (Step::Float, Column::Float(column)) => column.push(f32::from_le_bytes(cursor.array()?)),
        (Step::Float, Column::Double(column)) => column.push(f32::from_le_bytes(cursor.array()?).into()),
        (Step::Double, Column::Double(column)) => column.push(f64::from_le_bytes(cursor.array()?)),
        (Step::Bytes, Column::Bytes(column)) => column.push(cursor.bytes()?)?,
        (Step::Text, Column::Bytes(column)) => column.push(cursor.text()?.as_bytes())?,
        (Step::Fixed(size), Column::Fixed(column)) => column.push(cursor.take(*size)?)?,
        (Step::Decimal { .. }, Column::LongDecimal(column)) => column.push(decimal(step, cursor)?),
        (Step::Decimal { .. }, Column::Decimal(column)) => match decimal(step, cursor)?.to_i128() {
            Some(number) => column.push(number),
            None => return Err(unfit(step)),
        },
        (Step::TextUuid, Column::Bytes(column)) => column.push(&text_uuid(cursor)?)?,
        (Step::BytesUuid, Column::Bytes(column)) => column.push(&uuid_of(&hex(&cursor.array::<16>()?)))?,
        (Step::Time { .. }, Column::Int(column)) => match time(step, cursor)?.try_into() {
            Ok(number) => column.push(number),
            Err(_) => return Err(unfit(step)),
        },
        (Step::Time { .. }, Column::Long(column)) => column.push(time(step, cursor)?),
        (Step::Symbols(symbols), Column::Bytes(column)) => column.push(symbol(symbols, cursor)?.as_bytes())?,
        (Step::Record(fields), Column::Struct(column)) => {
            for (place, field) in fields {
                match place {
                    Some(place) => match column.columns.get_mut(*place) {
                        Some(part) => read(field, part, cursor)?,
                        None => return Err(unfit(step)),
                    },
                    None => skip(field, cursor)?,
                }
            }
            column.complete();
        }
        (Step::Array { item, is_empty }, Column::List(column)) => {
            let mut before = 0;
            loop {
                match cursor.block(is_empty.then_some(EMPTY_ITEMS_MAX - before))? {
                    0 => break,
                    count => {
                        for _ in 0..count {
                            read(item, &mut column.items, cursor)?;
                        }
                        before += if *is_empty { count } else { 0 };
                    }
                }
            }
            column.complete()?;
        }
        (Step::Map(value), Column::Map(column)) => read_map(value, column, cursor)?,
        (Step::Union(branches), column) => read(branch(branches, cursor)?, column, cursor)?,
        (Step::Member(place, value), Column::Struct(column)) => {
            for (other, part) in column.columns.iter_mut().enumerate() {
                if other == *place {
                    read(value, part, cursor)?;
                } else {
                    part.null();
                }
            }
            column.complete();
        }
        (Step::Refused(reason), _) => return Err(bad(format!("{reason} (at byte {})", cursor.at()))),
        (Step::Default(data, value), column) => read(value, column, &mut Cursor::new(data))?,
        (step, _) => return Err(unfit(step)),
    }
    Ok(())
}

/// Check what nobody wants.
fn skip(step: &Step, cursor: &mut Cursor<'_>) -> Result<(), Failed> {
    match step {
        Step::Null | Step::Default(..) => {}
        Step::Boolean => drop(cursor.boolean()?),
        Step::Int => drop(cursor.int()?),
        Step::Long => drop(cursor.long()?),
        Step::Float => drop(cursor.take(4)?),
        Step::Double => drop(cursor.take(8)?),
        Step::Bytes => drop(cursor.bytes()?),
        Step::Text => drop(cursor.text()?),
        Step::Fixed(size) => drop(cursor.take(*size)?),
        Step::Decimal { .. } => drop(decimal(step, cursor)?),
        Step::TextUuid => drop(text_uuid(cursor)?),
        Step::BytesUuid => drop(cursor.take(16)?),
        Step::Time { .. } => drop(time(step, cursor)?),
        Step::Symbols(symbols) => drop(symbol(symbols, cursor)?),
        Step::Record(fields) => {
            for (_, field) in fields {
                skip(field, cursor)?;
            }
        }
        Step::Array { item, is_empty } => {
            let mut before = 0;
            loop {
                match cursor.block(is_empty.then_some(EMPTY_ITEMS_MAX - before))? {
                    0 => break,
                    count if *is_empty => before += count,
                    count => {
                        for _ in 0..count {
                            skip(item, cursor)?;
                        }
                    }
                }
            }
        }
        Step::Map(value) => loop {
            match cursor.block(None)? {
                0 => break,
                count => {
                    for _ in 0..count {
                        cursor.text()?;
                        skip(value, cursor)?;
                    }
                }
            }
        },
        Step::Union(branches) => skip(branch(branches, cursor)?, cursor)?,
        Step::Member(_, value) => skip(value, cursor)?,
        Step::Refused(reason) => return Err(bad(format!("{reason} (at byte {})", cursor.at()))),
    }
    Ok(())
}

fn branch<'s>(branches: &'s [Arc<Step>], cursor: &mut Cursor<'_>) -> Result<&'s Step, Failed> {
    let number = cursor.long()?;
    let branch = usize::try_from(number).ok().and_then(|number| branches.get(number));
    branch.map(Arc::as_ref).ok_or_else(|| bad(format!("a union of {} has the branch {number}", branches.len())))
}

fn symbol<'s>(symbols: &'s [Result<String, String>], cursor: &mut Cursor<'_>) -> Result<&'s str, Failed> {
    let number = cursor.long()?;
    match usize::try_from(number).ok().and_then(|number| symbols.get(number)) {
        Some(Ok(text)) => Ok(text),
        Some(Err(reason)) => Err(bad(reason.as_str())),
        None => Err(bad(format!("an enum of {} symbols has the index {number}", symbols.len()))),
    }
}

// --- maps ----------------------------------------------------------------------------------------

/// The keys of one map: the last value of a key is in the place of its first one.
struct Keys<'a> {
    few: [&'a [u8]; FEW_KEYS],
    count: usize,
    /// Places by keys, once there are many.
    many: HashMap<&'a [u8], usize>,
    /// The entry at each place, once a key has come again.
    order: Option<Vec<u32>>,
}

impl<'a> Keys<'a> {
    fn new() -> Keys<'a> {
        Keys { few: [&[]; FEW_KEYS], count: 0, many: HashMap::new(), order: None }
    }

    /// Note the key of an entry.
    #[inline]
    fn add(&mut self, key: &'a [u8], first: usize, entry: usize) {
        if self.count >= FEW_KEYS && self.many.is_empty() {
            self.many = self.few.iter().copied().zip(0..).collect();
        }
        let few = &self.few[..self.count.min(FEW_KEYS)];
        let place = match self.count >= FEW_KEYS {
            true => self.many.get(key).copied(),
            false => few.iter().position(|other| *other == key),
        };
        match (place, &mut self.order) {
            (Some(place), order) => {
                let order = order.get_or_insert_with(|| (first as u32..entry as u32).collect());
                order[place] = entry as u32;
                return;
            }
            (None, Some(order)) => order.push(entry as u32),
            (None, None) => {}
        }
        match self.few.get_mut(self.count) {
            Some(free) => *free = key,
            None => drop(self.many.insert(key, self.count)),
        }
        self.count += 1;
    }
}

fn read_map<'a>(value: &Step, column: &mut Map, cursor: &mut Cursor<'a>) -> Result<(), Failed> {
    let first = column.entries();
    let mut keys = Keys::new();
    loop {
        match cursor.block(None)? {
            0 => break,
            count => {
                for _ in 0..count {
                    let key = cursor.text()?.as_bytes();
                    keys.add(key, first, column.entries());
                    column.keys.push(key)?;
                    read(value, &mut column.values, cursor)?;
                    column.complete_entry()?;
                }
            }
        }
    }
    column.complete(first, keys.order)
}

// --- logical types -------------------------------------------------------------------------------

fn decimal(step: &Step, cursor: &mut Cursor<'_>) -> Result<i256, Failed> {
    let Step::Decimal { size, most, precision } = step else { return Err(unfit(step)) };
    let bytes = match size {
        Some(size) => cursor.take(*size)?,
        None => cursor.bytes()?,
    };
    let number = (bytes.len() <= DECIMAL_BYTES_MAX).then(|| signed(bytes)).flatten();
    let number = number.filter(|number| *number <= *most && *number >= most.wrapping_neg());
    number.ok_or_else(|| bad(format!("a decimal has more than {precision} digits")))
}

/// A number in two's complement; None: it has more than 256 bits.
fn signed(bytes: &[u8]) -> Option<i256> {
    let sign = if bytes.first().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
    let mut number = [sign; 32];
    let (above, within) = bytes.split_at(bytes.len().saturating_sub(32));
    number[32 - within.len()..].copy_from_slice(within);
    let is_whole = above.iter().all(|byte| *byte == sign) && (number[0] >= 0x80) == (sign == 0xff);
    is_whole.then(|| i256::from_be_bytes(number))
}

fn time(step: &Step, cursor: &mut Cursor<'_>) -> Result<i64, Failed> {
    let Step::Time { is_long, day } = step else { return Err(unfit(step)) };
    let number = if *is_long { cursor.long()? } else { cursor.int()?.into() };
    if (0..*day).contains(&number) { Ok(number) } else { Err(bad(format!("{number} is not a time of day"))) }
}

fn hex(bytes: &[u8; 16]) -> [u8; 32] {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    digits
}

/// The usual form, with hyphens.
fn uuid_of(digits: &[u8; 32]) -> [u8; 36] {
    let mut text = [b'-'; 36];
    for (from, to, length) in [(0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12)] {
        text[to..to + length].copy_from_slice(&digits[from..from + length]);
    }
    text
}

fn text_uuid(cursor: &mut Cursor<'_>) -> Result<[u8; 36], Failed> {
    let text = cursor.text()?;
    // Other forms are: urn:uuid:..., braces around it, no hyphens.
    let digits = text.replace("urn:", "").replace("uuid:", "");
    let digits = digits.trim_matches(['{', '}']).replace('-', "").to_ascii_lowercase();
    match <&[u8; 32]>::try_from(digits.as_bytes()) {
        Ok(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(uuid_of(digits)),
        _ => Err(bad("a text is not a UUID")),
    }
}

#[cfg(test)]
#[path = "avro_tests.rs"]
mod tests;
