//! Messages of a schema, as they are decoded.

use std::collections::HashMap;
use std::sync::Arc;

use super::wire::{FIXED32, FIXED64, SIZED, VARINT};

/// Fields with greater numbers are searched.
const DENSE_MAX: usize = 256;
/// No field has the number.
const NOTHING: u32 = u32::MAX;

/// The type of a value.
#[derive(Clone)]
pub enum Kind {
    Double,
    Float,
    Int64,
    Uint64,
    Int32,
    Fixed64,
    Fixed32,
    Bool,
    Text,
    Bytes,
    Uint32,
    Enum(Arc<Enum>),
    Sfixed32,
    Sfixed64,
    Sint32,
    Sint64,
    Message(Arc<Message>),
    Timestamp,
    Duration,
    /// A message of a single value with the number 1.
    Wrapper(Box<Kind>),
}

impl Kind {
    pub fn wire(&self) -> u8 {
        match self {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => FIXED64,
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => FIXED32,
            Kind::Text | Kind::Bytes | Kind::Message(_) | Kind::Timestamp | Kind::Duration | Kind::Wrapper(_) => SIZED,
            _ => VARINT,
        }
    }

    /// Whether a number is none of a closed enum, and so no value of the field.
    #[inline(always)]
    pub fn ignores(&self, bits: u64) -> bool {
        matches!(self, Kind::Enum(names) if names.is_closed && names.name(bits as i32).is_none())
    }

    /// Fields of a message that are filled where it is missing.
    fn width(&self) -> i64 {
        if let Kind::Message(message) = self { message.width } else { 0 }
    }
}

pub struct Enum {
    /// By their numbers, as long as these are small.
    low: Vec<Option<Box<str>>>,
    others: HashMap<i32, Box<str>>,
    pub is_closed: bool,
}

impl Enum {
    pub fn new(names: Vec<(i32, String)>, is_closed: bool) -> Enum {
        let mut result = Enum { low: Vec::new(), others: HashMap::new(), is_closed };
        for (number, name) in names {
            match usize::try_from(number) {
                Ok(place) if place < DENSE_MAX => {
                    if place >= result.low.len() {
                        result.low.resize(place + 1, None);
                    }
                    result.low[place] = Some(name.into());
                }
                _ => {
                    result.others.insert(number, name.into());
                }
            }
        }
        result
    }

    #[inline]
    pub fn name(&self, number: i32) -> Option<&str> {
        match self.low.get(number as usize) {
            Some(name) => name.as_deref(),
            None => self.others.get(&number).map(AsRef::as_ref),
        }
    }
}

/// How often a field may be there.
pub enum Shape {
    Single,
    List,
    /// The type of its keys.
    Map(Kind),
}

pub struct Field {
    pub number: u32,
    pub kind: Kind,
    pub wire: u8,
    pub shape: Shape,
    /// A missing value is null.
    pub has_presence: bool,
    pub is_required: bool,
    /// A bit for each group of fields of which one at most is there.
    pub oneof: u64,
    /// Fields that are filled where it is missing.
    pub width: i64,
}

impl Field {
    pub fn new(number: u32, kind: Kind, shape: Shape) -> Field {
        let wire = if let Shape::Map(_) = shape { SIZED } else { kind.wire() };
        let width = kind.width();
        Field { number, wire, kind, shape, has_presence: false, is_required: false, oneof: 0, width }
    }
}

pub struct Message {
    pub fields: Vec<Field>,
    /// Of all fields, and those of messages in it that are no items.
    width: i64,
    dense: Vec<u32>,
    sparse: HashMap<u32, u32>,
}

impl Message {
    pub fn new(fields: Vec<Field>) -> Message {
        let (mut dense, mut sparse) = (Vec::new(), HashMap::new());
        for (index, field) in fields.iter().enumerate() {
            match field.number as usize {
                number if number < DENSE_MAX => {
                    if number >= dense.len() {
                        dense.resize(number + 1, NOTHING);
                    }
                    dense[number] = index as u32;
                }
                _ => {
                    sparse.insert(field.number, index as u32);
                }
            }
        }
        let singles = fields.iter().filter(|field| matches!(field.shape, Shape::Single));
        let width = fields.len() as i64 + singles.map(|field| field.width).sum::<i64>();
        Message { fields, width, dense, sparse }
    }

    #[inline(always)]
    pub fn find(&self, number: u32) -> Option<usize> {
        let index = match self.dense.get(number as usize) {
            Some(index) => *index,
            None => *self.sparse.get(&number)?,
        };
        (index != NOTHING).then_some(index as usize)
    }
}
