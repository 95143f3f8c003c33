//! Values of Protobuf and of JSON.
//!
//! Each row is decoded, or left to the reader in Python: it is bad, or is written in a way that no serializer has.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::DataType;

use super::column::Column;
use super::frames::Framing;
use super::input::Input;
use super::protobuf_plan::Message;
use super::wire::{Doubtful, Read};
use super::{json, protobuf};

/// Frames that one column may have, before the rest of its rows is left to Python.
const FRAMES_MAX: usize = 1_000;

/// The values of a column, and the rows that are left to Python, rising: their values are null.
pub type Decoded = (ArrayRef, Vec<usize>);

/// Decode all rows by a function that appends one of them, or part of it and an error.
fn decode<'a>(
    kind: &DataType,
    input: Input<'a>,
    mut append: impl FnMut(&mut Column, &'a [u8]) -> Read<()>,
) -> Result<Decoded, String> {
    let mut column = Column::new(kind).map_err(|error| error.to_string())?;
    let mut left = Vec::new();
    for (row, value) in input.values().enumerate() {
        match value?.map(|value| append(&mut column, value)) {
            Some(Ok(())) => continue,
            Some(Err(Doubtful)) => {
                column.truncate(row);
                left.push(row);
            }
            None => {}
        }
        column.null();
    }
    Ok((column.finish().map_err(|error| error.to_string())?, left))
}

/// Decodes messages of Protobuf.
pub struct Protobuf {
    pub kind: DataType,
    pub message: Arc<Message>,
    pub framing: Framing,
}

impl Protobuf {
    /// Return the different frames of values.
    pub fn frames(&self, input: Input) -> Result<Vec<Vec<u8>>, String> {
        let mut frames: Vec<&[u8]> = Vec::new();
        for value in input.values() {
            let frame = value?.and_then(|value| self.framing.of_message(value));
            if let Some(frame) = frame
                && frames.len() < FRAMES_MAX
                && frames.last() != Some(&frame)
                && !frames.contains(&frame)
            {
                frames.push(frame);
            }
        }
        Ok(frames.into_iter().map(<[u8]>::to_vec).collect())
    }

    /// Decode values with these frames, and leave all others to Python.
    pub fn decode(&self, input: Input, frames: &[Vec<u8>]) -> Result<Decoded, String> {
        let mut scratch = protobuf::Scratch::default();
        let mut last: &[u8] = &[];
        decode(&self.kind, input, |column, value| {
            let content = match self.framing {
                Framing::None => value,
                _ if !last.is_empty() && value.starts_with(last) => &value[last.len()..],
                _ => {
                    let frame = self.framing.of_message(value).ok_or(Doubtful)?;
                    last = frames.iter().find(|known| *known == frame).ok_or(Doubtful)?;
                    &value[last.len()..]
                }
            };
            protobuf::append(&self.message, column, content, &mut scratch)
        })
    }
}

/// Decodes texts of JSON.
pub struct Json {
    pub kind: DataType,
    pub plan: json::Plan,
    pub framing: Framing,
}

impl Json {
    /// Decode values; all are text after their frames.
    pub fn decode(&self, input: Input) -> Result<Decoded, String> {
        self.decode_with(input, &mut json::Scratch::default())
    }

    /// Decode values, and count those that have fields without a column.
    pub fn decode_counted(&self, input: Input) -> Result<(Decoded, json::Discarded), String> {
        let mut scratch = json::Scratch::counting();
        let decoded = self.decode_with(input, &mut scratch)?;
        Ok((decoded, scratch.counted()))
    }

    fn decode_with(&self, input: Input, scratch: &mut json::Scratch) -> Result<Decoded, String> {
        let mut plan = self.plan.clone();
        decode(&self.kind, input, |column, value| {
            let text = self.framing.after_id(value).ok_or(Doubtful)?;
            json::append(&mut plan, column, text, scratch)
        })
    }
}
