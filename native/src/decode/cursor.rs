//! Numbers and bytes of Avro, each checked before anything is made for it.

/// Why a value is not decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// The value is bad.
    Bad(String),
    /// A column is full.
    TooLarge,
    /// The plan is not one for this column.
    Plan(String),
}

/// Small, so that results are returned in registers.
pub type Failed = Box<Fault>;

#[cold]
pub fn bad(reason: impl Into<String>) -> Failed {
    Box::new(Fault::Bad(reason.into()))
}

#[cold]
fn too_short() -> Failed {
    bad("the record is too short")
}

/// A number with commas between its thousands.
pub fn grouped(number: i128) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What is left of a value.
pub struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8]) -> Cursor<'a> {
        Cursor { data, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn left(&self) -> usize {
        self.data.len() - self.at
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, Failed> {
        let Some(byte) = self.data.get(self.at) else { return Err(too_short()) };
        self.at += 1;
        Ok(*byte)
    }

    #[inline]
    pub fn take(&mut self, size: usize) -> Result<&'a [u8], Failed> {
        if size > self.left() {
            return Err(too_short());
        }
        let start = self.at;
        self.at += size;
        Ok(&self.data[start..self.at])
    }

    /// A number in zigzag, of 64 bits at most.
    #[inline]
    pub fn long(&mut self) -> Result<i64, Failed> {
        let byte = self.byte()?;
        let number = if byte < 0x80 { u64::from(byte) } else { self.rest_of_long(byte)? };
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn rest_of_long(&mut self, first: u8) -> Result<u64, Failed> {
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                if shift == 63 && byte > 1 {
                    break;
                }
                return Ok(number);
            }
        }
        Err(bad("a number has more than 64 bits"))
    }

    #[inline]
    pub fn int(&mut self) -> Result<i32, Failed> {
        let number = self.long()?;
        i32::try_from(number).map_err(|_| bad(format!("the int {number} has more than 32 bits")))
    }

    #[inline]
    pub fn boolean(&mut self) -> Result<bool, Failed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(bad(format!("a boolean has the byte {byte}"))),
        }
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Failed> {
        match self.take(N)?.first_chunk() {
            Some(bytes) => Ok(*bytes),
            None => Err(too_short()),
        }
    }

    /// Bytes, after their number.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Failed> {
        let size = self.long()?;
        match usize::try_from(size) {
            Ok(size) if size <= self.left() => self.take(size),
            _ => Err(bad(format!(
                "a length of {}, and {} bytes are left",
                grouped(size.into()),
                grouped(self.left() as i128)
            ))),
        }
    }

    #[inline]
    pub fn text(&mut self) -> Result<&'a str, Failed> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error))
    }

    /// The number of items of the next block of an array or a map, which takes a byte for each item at least; 0: the end.
    ///
    /// `empty`: how many items may follow that take no bytes.
    #[inline]
    pub fn block(&mut self, empty: Option<usize>) -> Result<usize, Failed> {
        let count = self.long()?;
        if count < 0 {
            self.long()?;
        }
        let most = empty.unwrap_or(self.left());
        match usize::try_from(count.unsigned_abs()) {
            Ok(items) if items <= most => Ok(items),
            _ => Err(bad(format!(
                "{} items, and {} bytes are left",
                grouped(count.unsigned_abs().into()),
                grouped(self.left() as i128)
            ))),
        }
    }
}

#[cold]
fn not_utf8(bytes: &[u8], error: std::str::Utf8Error) -> Failed {
    let reason = match (error.error_len(), bytes.get(error.valid_up_to())) {
        (None, _) => "unexpected end of data",
        (_, Some(0xc2..=0xf4)) => "invalid continuation byte",
        _ => "invalid start byte",
    };
    bad(format!("a string is not valid UTF-8: {reason}"))
}
