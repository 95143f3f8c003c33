//! The primitives of Kafka's protocol, in its flexible versions.
//!
//! Nothing is allocated by a number of the wire that the bytes at hand cannot hold.

/// What is wrong with a response.
pub type Read<T> = Result<T, &'static str>;

/// A topic's id.
pub type Id = [u8; 16];

/// The id of a topic that has none.
pub const NO_ID: Id = [0; 16];

/// Writes a request.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Begin a request with the header of flexible versions (version 2).
    pub fn request(key: i16, version: i16, correlation: i32, client: &str) -> Writer {
        let mut writer = Writer::request_without_tags(key, version, correlation, client);
        writer.tags();
        writer
    }

    /// Begin a request with the header of other versions (version 1).
    pub fn request_without_tags(key: i16, version: i16, correlation: i32, client: &str) -> Writer {
        let mut writer = Writer(Vec::with_capacity(512));
        // The size, once it is known.
        writer.i32(0);
        writer.i16(key);
        writer.i16(version);
        writer.i32(correlation);
        writer.i16(i16::try_from(client.len()).unwrap_or(0));
        writer.0.extend(client.as_bytes());
        writer
    }

    pub fn i8(&mut self, value: i8) {
        self.0.extend(value.to_be_bytes());
    }

    pub fn i16(&mut self, value: i16) {
        self.0.extend(value.to_be_bytes());
    }

    pub fn i32(&mut self, value: i32) {
        self.0.extend(value.to_be_bytes());
    }

    pub fn i64(&mut self, value: i64) {
        self.0.extend(value.to_be_bytes());
    }

    pub fn unsigned(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// The length of a compact array.
    pub fn count(&mut self, count: usize) {
        self.unsigned(count + 1);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// No tagged fields.
    pub fn tags(&mut self) {
        self.0.push(0);
    }

    /// The whole request, with its size.
    pub fn framed(mut self) -> Vec<u8> {
        let size = (self.0.len() - 4) as i32;
        self.0[..4].copy_from_slice(&size.to_be_bytes());
        self.0
    }
}

/// Reads a response.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("the response ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "the response ends early")
    }

    pub fn i8(&mut self) -> Read<i8> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    pub fn i16(&mut self) -> Read<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Read<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Read<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub fn id(&mut self) -> Read<Id> {
        self.array()
    }

    pub fn unsigned(&mut self) -> Read<usize> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.array::<1>()?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value).map(|value| value as usize).map_err(|_| "a number is too long");
            }
        }
        Err("a number is too long")
    }

    /// None for null.
    pub fn bytes(&mut self) -> Read<Option<&'a [u8]>> {
        match self.unsigned()? {
            0 => Ok(None),
            size => self.take(size - 1).map(Some),
        }
    }

    pub fn text(&mut self) -> Read<Option<&'a str>> {
        self.bytes()?.map(|bytes| std::str::from_utf8(bytes).map_err(|_| "a name is not UTF-8")).transpose()
    }

    /// Read each tagged field by its number.
    pub fn tags_by(&mut self, mut each: impl FnMut(usize, Reader<'a>) -> Read<()>) -> Read<()> {
        for _ in 0..self.unsigned()? {
            let (number, size) = (self.unsigned()?, self.unsigned()?);
            each(number, Reader(self.take(size)?))?;
        }
        Ok(())
    }

    pub fn tags(&mut self) -> Read<()> {
        self.tags_by(|_, _| Ok(()))
    }

    /// Read each element of a compact array.
    pub fn each(&mut self, mut element: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        for _ in 1..self.unsigned()?.max(1) {
            element(self)?;
        }
        Ok(())
    }
}
