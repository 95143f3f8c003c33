//! The primitives of Protobuf's wire format.
//!
//! What no serializer writes, as numbers of too many bytes or groups, is an error here: the reader in Python decides.

use super::cursor::Failed;

/// The value is left to the reader in Python.
#[derive(Debug, PartialEq, Eq)]
pub struct Doubtful;

/// A column that is full leaves the row to Python as well, which then has all values in hand.
impl From<Failed> for Doubtful {
    fn from(_: Failed) -> Doubtful {
        Doubtful
    }
}

pub type Read<T> = Result<T, Doubtful>;

pub const VARINT: u8 = 0;
pub const FIXED64: u8 = 1;
pub const SIZED: u8 = 2;
pub const FIXED32: u8 = 5;

/// A value as it stands in a message: its bits, or its bytes.
#[derive(Clone, Copy, Default)]
pub struct Value<'a> {
    pub bits: u64,
    pub bytes: &'a [u8],
}

/// Reads what is left of a message.
pub struct Wire<'a>(pub &'a [u8]);

impl<'a> Wire<'a> {
    #[inline(always)]
    pub fn varint(&mut self) -> Read<u64> {
        match self.0 {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.0 = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for (place, byte) in self.0.iter().take(10).enumerate() {
            if place == 9 && *byte > 1 {
                return Err(Doubtful);
            }
            value |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.0 = &self.0[place + 1..];
                return Ok(value);
            }
        }
        Err(Doubtful)
    }

    /// Read the number of a field, and the type of its value.
    #[inline(always)]
    pub fn tag(&mut self) -> Read<(u32, u8)> {
        let before = self.0.len();
        let tag = self.varint()?;
        let number = u32::try_from(tag).map_err(|_| Doubtful)? >> 3;
        if number == 0 || before - self.0.len() > 5 {
            return Err(Doubtful);
        }
        Ok((number, tag as u8 & 7))
    }

    #[inline(always)]
    fn take(&mut self, size: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size).ok_or(Doubtful)?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline(always)]
    pub fn bytes(&mut self) -> Read<&'a [u8]> {
        let before = self.0.len();
        let size = self.varint()?;
        if before - self.0.len() > 5 || size > i32::MAX as u64 {
            return Err(Doubtful);
        }
        self.take(size as usize)
    }

    #[inline(always)]
    pub fn value(&mut self, kind: u8) -> Read<Value<'a>> {
        Ok(match kind {
            VARINT => Value { bits: self.varint()?, bytes: &[] },
            FIXED64 => Value { bits: u64::from_le_bytes(fixed(self.take(8)?)?), bytes: &[] },
            SIZED => Value { bits: 0, bytes: self.bytes()? },
            FIXED32 => Value { bits: u64::from(u32::from_le_bytes(fixed(self.take(4)?)?)), bytes: &[] },
            _ => return Err(Doubtful),
        })
    }
}

#[inline(always)]
fn fixed<const N: usize>(bytes: &[u8]) -> Read<[u8; N]> {
    bytes.try_into().map_err(|_| Doubtful)
}
