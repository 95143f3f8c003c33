//! Plans as Python writes them, and the decoding of a column by the plan of each writer.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_buffer::i256;
use arrow_schema::DataType;

use crate::decode::avro::{Step, read_whole};
use crate::decode::column::Column;
use crate::decode::cursor::Fault;
use crate::decode::input::Input;

/// Levels of types: each is a call.
const LEVELS_MAX: usize = 256;

/// A step: its kind, numbers, texts and bytes. Steps that it uses are named by their places before it.
pub type Told = (String, Vec<i64>, Vec<String>, Vec<u8>);

/// Return the last step, which uses the others.
pub fn plan(told: Vec<Told>) -> Result<Arc<Step>, String> {
    let mut steps: Vec<(Arc<Step>, usize)> = Vec::with_capacity(told.len());
    for (kind, numbers, texts, data) in told {
        let mut levels = 0;
        let mut other = |place: Option<&i64>| -> Result<Arc<Step>, String> {
            let place = place.and_then(|place| usize::try_from(*place).ok());
            let (step, below) = place.and_then(|place| steps.get(place)).ok_or("a plan without one of its steps")?;
            levels = levels.max(*below);
            Ok(step.clone())
        };
        let number = |place: usize| numbers.get(place).copied().ok_or("a plan without one of its numbers");
        let step = match kind.as_str() {
            "null" => Step::Null,
            "boolean" => Step::Boolean,
            "int" => Step::Int,
            "long" => Step::Long,
            "float" => Step::Float,
            "double" => Step::Double,
            "bytes" => Step::Bytes,
            "string" => Step::Text,
            "fixed" => Step::Fixed(size(number(0)?)?),
            "decimal" => Step::Decimal {
                size: if number(0)? < 0 { None } else { Some(size(number(0)?)?) },
                precision: number(1)?.try_into().map_err(|_| "a precision")?,
                most: most(number(1)?)?,
            },
            "text uuid" => Step::TextUuid,
            "bytes uuid" => Step::BytesUuid,
            "time" => Step::Time { is_long: number(0)? == 1, day: number(1)? },
            "symbols" => Step::Symbols(
                numbers.iter().zip(texts).map(|(known, text)| if *known == 1 { Ok(text) } else { Err(text) }).collect(),
            ),
            "record" => Step::Record(
                numbers
                    .chunks(2)
                    .map(|field| Ok((usize::try_from(field[0]).ok(), other(field.get(1))?)))
                    .collect::<Result<_, String>>()?,
            ),
            "array" => Step::Array { item: other(numbers.first())?, is_empty: number(1)? == 1 },
            "map" => Step::Map(other(numbers.first())?),
            "union" => Step::Union(numbers.iter().map(|place| other(Some(place))).collect::<Result<_, _>>()?),
            "member" => Step::Member(size(number(0)?)?, other(numbers.get(1))?),
            "refused" => Step::Refused(texts.into_iter().next().unwrap_or_default()),
            "default" => Step::Default(data, other(numbers.first())?),
            _ => return Err(format!("a plan has the step {kind}")),
        };
        if levels >= LEVELS_MAX {
            return Err(format!("more than {LEVELS_MAX} levels of types"));
        }
        steps.push((Arc::new(step), levels + 1));
    }
    steps.pop().map(|(step, _)| step).ok_or_else(|| "a plan without steps".into())
}

fn size(number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("a plan has the size {number}"))
}

/// The greatest number of so many digits.
fn most(precision: i64) -> Result<i256, String> {
    match precision {
        1..=76 => Ok(i256::from_i128(10).wrapping_pow(precision as u32).wrapping_sub(i256::ONE)),
        _ => Err(format!("a plan has the precision {precision}")),
    }
}

/// How the values of one writer are decoded: by a plan, or not at all.
pub type Writer = Result<Arc<Step>, String>;

/// Why the values of rows are bad.
pub type Reasons = Vec<(usize, String)>;

/// What stands before a value: a zero byte, and so many bytes of an id; 0: nothing.
#[derive(Clone, Copy)]
pub struct Frame(pub usize);

impl Frame {
    /// The id before a value, and the value; an error for another beginning.
    #[inline]
    pub fn split(self, data: &[u8]) -> Result<(u64, &[u8]), String> {
        match (self.0, data) {
            (0, _) => Ok((0, data)),
            (size, [0, rest @ ..]) if rest.len() >= size => {
                let (id, value) = rest.split_at(size);
                Ok((id.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)), value))
            }
            _ => Err("it does not begin with a zero byte and a schema id".into()),
        }
    }
}

/// Decode a column; `writer` returns how the values with an id are decoded, None if the id is not known.
pub fn decode(
    kind: &DataType,
    input: Input<'_>,
    frame: Frame,
    writer: impl Fn(u64) -> Option<Writer>,
) -> Result<(ArrayRef, Reasons), Fault> {
    let failed = |error: arrow_schema::ArrowError| Fault::Plan(error.to_string());
    let mut column = Column::new(kind).map_err(failed)?;
    let mut reasons = Vec::new();
    let mut last: Option<(u64, Writer)> = None;
    for (row, value) in input.values().enumerate() {
        let Some(value) = value.map_err(Fault::Plan)? else {
            column.null();
            continue;
        };
        let read = frame.split(value).map_err(Fault::Bad).and_then(|(id, value)| {
            if last.as_ref().is_none_or(|(known, _)| *known != id) {
                let found = writer(id).ok_or_else(|| Fault::Plan(format!("no plan for the schema {id}")))?;
                last = Some((id, found));
            }
            match &last {
                Some((_, Ok(step))) => read_whole(step, &mut column, value).map_err(|fault| *fault),
                Some((_, Err(reason))) => Err(Fault::Bad(reason.clone())),
                None => Err(Fault::Plan("no plan".into())),
            }
        });
        match read {
            Ok(()) => {}
            Err(Fault::Bad(reason)) => {
                column.truncate(row);
                column.null();
                reasons.push((row, reason));
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok((column.finish().map_err(failed)?, reasons))
}
