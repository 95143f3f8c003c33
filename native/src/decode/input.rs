//! The bytes of a column, as Arrow has them in its buffers.

/// Values of the type `binary` or `large_binary`.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Of the values, from the first one on.
    pub data: &'a [u8],
    /// Where values begin, and where the last one ends: numbers of `width` bytes, less `base` each.
    pub offsets: &'a [u8],
    /// 4 or 8.
    pub width: usize,
    pub base: i64,
    /// A bit for each value, from the bit `first` on; None: there is no null.
    pub validity: Option<&'a [u8]>,
    pub first: usize,
}

impl<'a> Input<'a> {
    pub fn rows(&self) -> usize {
        (self.offsets.len() / self.width).saturating_sub(1)
    }

    fn offset(&self, row: usize) -> Option<usize> {
        let bytes = self.offsets.get(row * self.width..(row + 1) * self.width)?;
        let offset = match bytes.len() {
            4 => i64::from(i32::from_le_bytes(bytes.try_into().ok()?)),
            _ => i64::from_le_bytes(bytes.try_into().ok()?),
        };
        usize::try_from(offset.checked_sub(self.base)?).ok()
    }

    fn is_valid(&self, row: usize) -> Option<bool> {
        let Some(bits) = self.validity else { return Some(true) };
        let bit = self.first + row;
        Some(bits.get(bit / 8)? >> (bit % 8) & 1 == 1)
    }

    /// The values, None for null; an error if the buffers do not fit together.
    pub fn values(self) -> impl Iterator<Item = Result<Option<&'a [u8]>, String>> {
        (0..self.rows()).map(move |row| {
            let value = || -> Option<Option<&'a [u8]>> {
                let data = self.data.get(self.offset(row)?..self.offset(row + 1)?)?;
                Some(self.is_valid(row)?.then_some(data))
            };
            value().ok_or_else(|| format!("the buffers of the row {row} do not fit together"))
        })
    }
}
