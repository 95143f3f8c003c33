//! What stands before a value: the id of a schema, and in Protobuf, which of its messages the value is.

use super::wire::Wire;

/// Longer ones are left to the reader in Python.
const FRAME_BYTES_MAX: usize = 1_000;
/// AWS Glue's frame: a version, how the rest is compressed, and the UUID of a schema. What is compressed is left to Python.
const GLUE_PLAIN: [u8; 2] = [3, 0];
const GLUE_BYTES: usize = 18;
/// Messages within messages, in an index.
const INDEX_LENGTH_MAX: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Confluent,
    Apicurio,
    Glue,
}

impl Framing {
    /// None: there is no such framing.
    pub fn named(name: &str) -> Option<Framing> {
        match name {
            "none" => Some(Framing::None),
            "confluent" => Some(Framing::Confluent),
            "apicurio-8" => Some(Framing::Apicurio),
            "glue" => Some(Framing::Glue),
            _ => None,
        }
    }

    /// Return the bytes after a schema's id; None: another beginning.
    pub fn after_id(self, value: &[u8]) -> Option<&[u8]> {
        let id = match self {
            Framing::None => return Some(value),
            Framing::Confluent => 4,
            Framing::Apicurio => 8,
            Framing::Glue => {
                let (frame, rest) = value.split_at_checked(GLUE_BYTES)?;
                return frame.starts_with(&GLUE_PLAIN).then_some(rest);
            }
        };
        let (frame, rest) = value.split_at_checked(1 + id)?;
        (frame[0] == 0).then_some(rest)
    }

    /// Return the id of a schema and what says which message a value is; None: it has no frame.
    pub fn of_message(self, value: &[u8]) -> Option<&[u8]> {
        let mut wire = Wire(self.after_id(value)?);
        match self {
            Framing::None => return None,
            Framing::Confluent => {
                let count = zigzag(wire.varint().ok()?);
                if !(0..=INDEX_LENGTH_MAX as i64).contains(&count) {
                    return None;
                }
                for _ in 0..count {
                    if zigzag(wire.varint().ok()?) < 0 {
                        return None;
                    }
                }
            }
            Framing::Glue => {
                wire.varint().ok()?;
            }
            Framing::Apicurio => {
                wire.bytes().ok()?;
            }
        }
        let frame = &value[..value.len() - wire.0.len()];
        (frame.len() <= FRAME_BYTES_MAX).then_some(frame)
    }
}

pub fn zigzag(bits: u64) -> i64 {
    (bits >> 1) as i64 ^ -((bits & 1) as i64)
}
