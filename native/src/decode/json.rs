//! Texts of JSON as columns: the exact values, or an error by which the reader in Python decides.

use std::collections::HashMap;
use std::str::from_utf8;

use arrow_schema::{DataType, Field};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::column::Column;
use super::json_numbers::{decimal, whole};
use super::json_text::{Json, Number};
use super::json_times::{Unit, date, moment, time_of_day};
use super::wire::{Doubtful, Read};

/// Fields that the objects of a record may have, whatever its length, and for each of its bytes.
const FIELDS_MIN: i64 = 20_000;
const FIELDS_PER_BYTE: i64 = 16;
/// Fields without a column that are counted by their paths.
const PATHS_MAX: usize = 1_000;

/// The type of a value.
#[derive(Clone)]
enum Kind {
    Bool,
    Whole,
    Float,
    Decimal { precision: u8, scale: usize },
    Text,
    Binary,
    Date,
    Time(Unit),
    Timestamp { unit: Unit, has_zone: bool },
    List(Box<Value>),
    Map(Box<Value>),
    Object(Object),
}

#[derive(Clone)]
struct Value {
    kind: Kind,
    is_nullable: bool,
}

#[derive(Clone)]
struct Object {
    /// What stands before the names of fields in their paths.
    prefix: Box<[u8]>,
    fields: Vec<(Box<[u8]>, Value)>,
    places: HashMap<Box<[u8]>, usize>,
    /// The fields of the last object, in their order: the next one mostly has the same.
    order: Vec<usize>,
    /// Of all fields, and those of objects in it that are no items.
    width: i64,
}

/// How values are decoded.
#[derive(Clone)]
pub struct Plan {
    object: Object,
    refuses_unknown: bool,
}

impl Plan {
    /// None: Python decodes such types.
    pub fn new(kind: &DataType, refuses_unknown: bool) -> Option<Plan> {
        let Kind::Object(object) = kind_of(kind, "")? else { return None };
        Some(Plan { object, refuses_unknown })
    }
}

fn kind_of(kind: &DataType, path: &str) -> Option<Kind> {
    Some(match kind {
        DataType::Boolean => Kind::Bool,
        DataType::Float32 | DataType::Float64 => Kind::Float,
        kind if kind.is_integer() => Kind::Whole,
        DataType::Decimal128(precision, scale) => {
            Kind::Decimal { precision: *precision, scale: usize::try_from(*scale).ok()? }
        }
        DataType::Utf8 => Kind::Text,
        DataType::Binary => Kind::Binary,
        DataType::Date32 => Kind::Date,
        DataType::Time32(unit) | DataType::Time64(unit) => Kind::Time(Unit(*unit)),
        DataType::Timestamp(unit, zone) => {
            Kind::Timestamp { unit: Unit(*unit), has_zone: zone.as_ref().is_some_and(|zone| !zone.is_empty()) }
        }
        DataType::List(item) => Kind::List(Box::new(value_of(item, &format!("{path}[]"))?)),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => Kind::Map(Box::new(value_of(fields.get(1)?, &format!("{path}[]"))?)),
            _ => return None,
        },
        DataType::Struct(fields) => {
            let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
            let fields = fields.iter().map(|field| {
                let value = value_of(field, &format!("{prefix}{}", field.name()))?;
                Some((field.name().as_bytes().into(), value))
            });
            let fields: Vec<(Box<[u8]>, Value)> = fields.collect::<Option<_>>()?;
            let places: HashMap<_, _> = fields.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
            if places.len() < fields.len() {
                return None;
            }
            let inner = fields.iter().map(|(_, value)| width_of(value)).sum::<i64>();
            let (order, width) = ((0..fields.len()).collect(), fields.len() as i64 + inner);
            Kind::Object(Object { prefix: prefix.into_bytes().into(), fields, places, order, width })
        }
        _ => return None,
    })
}

fn value_of(field: &Field, path: &str) -> Option<Value> {
    Some(Value { kind: kind_of(field.data_type(), path)?, is_nullable: field.is_nullable() })
}

fn width_of(value: &Value) -> i64 {
    if let Kind::Object(object) = &value.kind { object.width } else { 0 }
}

/// What values share.
#[derive(Default)]
pub struct Scratch {
    refuses_unknown: bool,
    /// A key or a text with escapes.
    text: Vec<u8>,
    /// Hashes of the keys of open objects, but for fields of the schema: where two are the same, Python looks.
    keys: Vec<u64>,
    /// Fields that may still be filled.
    left: i64,
    /// Counts fields without a column; none if they are not counted.
    discarded: Option<Discarded>,
    /// The paths of those in this text.
    unknown: Vec<Vec<u8>>,
}

/// Texts with fields that have no column, in all and by the paths of these fields; the empty one stands for all beyond the first ones.
#[derive(Default)]
pub struct Discarded {
    pub texts: u64,
    pub fields: HashMap<Vec<u8>, u64>,
}

impl Discarded {
    fn add(&mut self, paths: &mut Vec<Vec<u8>>) {
        if paths.is_empty() {
            return;
        }
        self.texts += 1;
        paths.sort_unstable();
        paths.dedup();
        for path in paths.drain(..) {
            let is_known = self.fields.len() < PATHS_MAX || self.fields.contains_key(&path);
            *self.fields.entry(if is_known { path } else { Vec::new() }).or_default() += 1;
        }
    }
}

/// Append a text as a row of a column; what it appended is to be cut off after an error.
pub fn append(plan: &mut Plan, column: &mut Column, bytes: &[u8], scratch: &mut Scratch) -> Read<()> {
    scratch.refuses_unknown = plan.refuses_unknown;
    scratch.keys.clear();
    scratch.unknown.clear();
    scratch.left = FIELDS_MIN + FIELDS_PER_BYTE * bytes.len() as i64;
    let mut json = Json::new(bytes)?;
    object(&mut plan.object, column, &mut json, scratch)?;
    json.end()?;
    if let Some(discarded) = &mut scratch.discarded {
        discarded.add(&mut scratch.unknown);
    }
    Ok(())
}

fn value(plan: &mut Value, column: &mut Column, json: &mut Json, scratch: &mut Scratch) -> Read<()> {
    if json.peek() == b'n' {
        json.word("null")?;
        if !plan.is_nullable {
            return Err(Doubtful);
        }
        if let Kind::Object(object) = &plan.kind {
            scratch.spend(object.width)?;
        }
        column.null();
        return Ok(());
    }
    match (&mut plan.kind, column) {
        (Kind::Object(plan), column) => object(plan, column, json, scratch)?,
        (Kind::Text, Column::Bytes(column)) => column.push(json.text()?.get(&mut scratch.text)?)?,
        (Kind::Whole, column) => push_whole(column, whole(json.number()?)?)?,
        (Kind::Float, column) => push_float(column, json.number()?)?,
        (Kind::Bool, Column::Boolean(column)) => {
            let is_true = json.peek() == b't';
            json.word(if is_true { "true" } else { "false" })?;
            column.push(is_true);
        }
        (Kind::List(item), Column::List(list)) => {
            json.open(b'[')?;
            if !json.is_empty(b']') {
                loop {
                    value(item, &mut list.items, json, scratch)?;
                    if !json.goes_on(b']')? {
                        break;
                    }
                }
            }
            list.complete()?;
        }
        (Kind::Map(item), Column::Map(map)) => {
            let first = scratch.keys.len();
            json.open(b'{')?;
            if !json.is_empty(b'}') {
                loop {
                    let key = json.text()?.get(&mut scratch.text)?;
                    scratch.keys.push(hash(key));
                    map.keys.push(key)?;
                    json.expect(b':')?;
                    value(item, &mut map.values, json, scratch)?;
                    map.complete_entry()?;
                    if !json.goes_on(b'}')? {
                        break;
                    }
                }
            }
            scratch.check_keys(first)?;
            map.complete(0, None)?;
        }
        (Kind::Timestamp { unit, has_zone }, Column::Long(column)) => column.push(if json.peek() == b'"' {
            moment(json.text()?.plain()?, *unit, *has_zone)?
        } else {
            i64::try_from(whole(json.number()?)?).map_err(|_| Doubtful)?
        }),
        (Kind::Date, Column::Int(column)) => column.push(if json.peek() == b'"' {
            date(json.text()?.plain()?)?
        } else {
            i32::try_from(integer(json)?).map_err(|_| Doubtful)?
        }),
        (Kind::Time(unit), column) => push_whole(column, i128::from(time(json, *unit)?))?,
        (Kind::Decimal { precision, scale }, Column::Decimal(column)) => {
            let number = if json.peek() == b'"' {
                let mut text = Json::new(json.text()?.plain()?)?;
                let number = text.number()?;
                text.end()?;
                number
            } else {
                json.number()?
            };
            column.push(decimal(number, *precision, *scale)?);
        }
        (Kind::Binary, Column::Bytes(column)) => {
            let text = json.text()?.plain()?;
            scratch.text.clear();
            STANDARD.decode_vec(text, &mut scratch.text).map_err(|_| Doubtful)?;
            column.push(&scratch.text)?;
        }
        _ => return Err(Doubtful),
    }
    Ok(())
}

fn object(plan: &mut Object, column: &mut Column, json: &mut Json, scratch: &mut Scratch) -> Read<()> {
    scratch.spend(plan.fields.len() as i64)?;
    let Column::Struct(column) = column else { return Err(Doubtful) };
    let row = column.rows();
    let first = scratch.keys.len();
    json.open(b'{')?;
    if !json.is_empty(b'}') {
        for at in 0.. {
            let key = json.text()?;
            let name = key.get(&mut scratch.text)?;
            let place = plan.place(name, at);
            let unknown = if place.is_none() { hash(name) } else { 0 };
            let is_counted = place.is_none() && scratch.discarded.is_some();
            let path = if is_counted { [&*plan.prefix, name].concat() } else { Vec::new() };
            json.expect(b':')?;
            match place {
                Some(place) => {
                    let (field, column) = (&mut plan.fields[place].1, &mut column.columns[place]);
                    if column.rows() > row {
                        return Err(Doubtful);
                    }
                    value(field, column, json, scratch)?;
                }
                None if scratch.refuses_unknown => return Err(Doubtful),
                None => {
                    scratch.keys.push(unknown);
                    if skip(json, scratch)? && is_counted {
                        scratch.unknown.push(path);
                    }
                }
            }
            if !json.goes_on(b'}')? {
                break;
            }
        }
    }
    scratch.check_keys(first)?;
    for ((_, field), column) in plan.fields.iter().zip(&mut column.columns) {
        if column.rows() == row {
            if !field.is_nullable {
                return Err(Doubtful);
            }
            scratch.spend(width_of(field))?;
            column.null();
        }
    }
    column.complete();
    Ok(())
}

impl Object {
    /// Return the place of a field, the `at`th of its object.
    #[inline(always)]
    fn place(&mut self, name: &[u8], at: usize) -> Option<usize> {
        if let Some(guess) = self.order.get(at)
            && *self.fields[*guess].0 == *name
        {
            return Some(*guess);
        }
        let place = *self.places.get(name)?;
        if let Some(guess) = self.order.get_mut(at) {
            *guess = place;
        }
        Some(place)
    }
}

/// Read any value, for nothing; return whether there is more in it than nulls, lists and objects.
fn skip(json: &mut Json, scratch: &mut Scratch) -> Read<bool> {
    let mut is_filled = false;
    match json.peek() {
        b'"' => {
            let text = json.text()?;
            text.get(&mut scratch.text)?;
            is_filled = true;
        }
        b'n' => json.word("null")?,
        b't' => {
            json.word("true")?;
            is_filled = true;
        }
        b'f' => {
            json.word("false")?;
            is_filled = true;
        }
        b'[' => {
            json.open(b'[')?;
            if json.is_empty(b']') {
                return Ok(false);
            }
            loop {
                is_filled |= skip(json, scratch)?;
                if !json.goes_on(b']')? {
                    break;
                }
            }
        }
        b'{' => {
            let first = scratch.keys.len();
            json.open(b'{')?;
            if json.is_empty(b'}') {
                return Ok(false);
            }
            loop {
                let key = json.text()?;
                scratch.keys.push(hash(key.get(&mut scratch.text)?));
                json.expect(b':')?;
                is_filled |= skip(json, scratch)?;
                if !json.goes_on(b'}')? {
                    break;
                }
            }
            scratch.check_keys(first)?;
        }
        _ => {
            json.number()?;
            is_filled = true;
        }
    }
    Ok(is_filled)
}

impl Scratch {
    /// Return one that counts fields without a column.
    pub fn counting() -> Scratch {
        Scratch { discarded: Some(Discarded::default()), ..Scratch::default() }
    }

    /// Return what was counted.
    pub fn counted(self) -> Discarded {
        self.discarded.unwrap_or_default()
    }

    fn spend(&mut self, fields: i64) -> Read<()> {
        self.left -= fields;
        if self.left < 0 { Err(Doubtful) } else { Ok(()) }
    }

    /// Forget the keys of an object; an error if two may be the same.
    #[inline]
    fn check_keys(&mut self, first: usize) -> Read<()> {
        if self.keys.len() > first + 1 {
            let keys = &mut self.keys[first..];
            keys.sort_unstable();
            if keys.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Doubtful);
            }
        }
        self.keys.truncate(first);
        Ok(())
    }
}

/// Fowler, Noll and Vo's hash, with 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn push_whole(column: &mut Column, number: i128) -> Read<()> {
    fn checked<T: TryFrom<i128>>(number: i128) -> Read<T> {
        T::try_from(number).map_err(|_| Doubtful)
    }
    match column {
        Column::I8(column) => column.push(checked(number)?),
        Column::I16(column) => column.push(checked(number)?),
        Column::Int(column) => column.push(checked(number)?),
        Column::Long(column) => column.push(checked(number)?),
        Column::U8(column) => column.push(checked(number)?),
        Column::U16(column) => column.push(checked(number)?),
        Column::U32(column) => column.push(checked(number)?),
        Column::U64(column) => column.push(checked(number)?),
        _ => return Err(Doubtful),
    }
    Ok(())
}

fn push_float(column: &mut Column, number: Number) -> Read<()> {
    let text = from_utf8(number.text).map_err(|_| Doubtful)?;
    // A whole number has no negative zero in Python.
    let value: f64 = if text == "-0" { 0.0 } else { text.parse().map_err(|_| Doubtful)? };
    match column {
        Column::Double(column) if value.is_finite() => column.push(value),
        Column::Float(column) if (value as f32).is_finite() => column.push(value as f32),
        _ => return Err(Doubtful),
    }
    Ok(())
}

/// Read a number without a point.
fn integer(json: &mut Json) -> Read<i128> {
    let number = json.number()?;
    if number.whole == number.text.len() { whole(number) } else { Err(Doubtful) }
}

fn time(json: &mut Json, unit: Unit) -> Read<i64> {
    if json.peek() == b'"' {
        return time_of_day(json.text()?.plain()?, unit);
    }
    let number = i64::try_from(integer(json)?).map_err(|_| Doubtful)?;
    if (0..unit.of_a_day()).contains(&number) { Ok(number) } else { Err(Doubtful) }
}
