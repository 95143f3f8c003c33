//! Columns of any type, filled row by row; the last rows can be taken back.

use std::sync::Arc;

use arrow_array::{ArrayRef, ListArray, MapArray, NullArray, StructArray, UInt32Array, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBufferBuilder, Buffer, NullBuffer, i256};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, FieldRef, Fields};
use arrow_select::take::take;

use crate::columns::{Nulls, offsets};
use crate::decode::cursor::{Failed, Fault};

#[cold]
fn too_large() -> Failed {
    Box::new(Fault::TooLarge)
}

fn empty(ends: &mut Vec<i32>, nulls: &mut Nulls, is_valid: bool) {
    nulls.mark(ends.len(), is_valid);
    ends.push(ends.last().copied().unwrap_or(0));
}

fn end(length: usize) -> Result<i32, Failed> {
    i32::try_from(length).map_err(|_| too_large())
}

/// Values of one width.
pub struct Numbers<T> {
    kind: DataType,
    values: Vec<T>,
    nulls: Nulls,
}

impl<T: ArrowNativeType + Default> Numbers<T> {
    fn new(kind: &DataType) -> Numbers<T> {
        Numbers { kind: kind.clone(), values: Vec::new(), nulls: Nulls::default() }
    }

    #[inline]
    pub fn push(&mut self, value: T) {
        self.values.push(value);
        self.nulls.valid();
    }

    fn any(&mut self, is_valid: bool) {
        self.nulls.mark(self.values.len(), is_valid);
        self.values.push(T::default());
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let rows = self.values.len();
        of_buffers(self.kind, rows, vec![Buffer::from_vec(self.values)], self.nulls.finish())
    }
}

fn of_buffers(
    kind: DataType,
    rows: usize,
    buffers: Vec<Buffer>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let data = ArrayData::builder(kind).len(rows).buffers(buffers).nulls(nulls).build()?;
    Ok(make_array(data))
}

/// Bytes or texts; those of a text are UTF-8.
pub struct Bytes {
    kind: DataType,
    ends: Vec<i32>,
    data: Vec<u8>,
    nulls: Nulls,
}

impl Bytes {
    fn new(kind: &DataType) -> Bytes {
        Bytes { kind: kind.clone(), ends: Vec::new(), data: Vec::new(), nulls: Nulls::default() }
    }

    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let end = end(self.data.len() + bytes.len())?;
        self.data.extend_from_slice(bytes);
        self.ends.push(end);
        self.nulls.valid();
        Ok(())
    }

    fn any(&mut self, is_valid: bool) {
        empty(&mut self.ends, &mut self.nulls, is_valid);
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.truncate(rows);
        self.data.truncate(self.ends.last().map_or(0, |end| *end as usize));
        self.nulls.truncate(rows);
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let rows = self.ends.len();
        let ends = offsets(&mut self.ends).into_inner().into_inner();
        of_buffers(self.kind, rows, vec![ends, Buffer::from_vec(self.data)], self.nulls.finish())
    }
}

pub struct Booleans {
    bits: BooleanBufferBuilder,
    nulls: Nulls,
}

impl Booleans {
    #[inline]
    pub fn push(&mut self, value: bool) {
        self.bits.append(value);
        self.nulls.valid();
    }
}

/// Bytes of one size.
pub struct Fixed {
    size: usize,
    rows: usize,
    data: Vec<u8>,
    nulls: Nulls,
}

impl Fixed {
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        if bytes.len() != self.size {
            return Err(Box::new(Fault::Plan(format!("{} bytes for {}", bytes.len(), self.size))));
        }
        self.data.extend_from_slice(bytes);
        self.rows += 1;
        self.nulls.valid();
        Ok(())
    }
}

pub struct Struct {
    fields: Fields,
    pub columns: Vec<Column>,
    rows: usize,
    nulls: Nulls,
}

impl Struct {
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// All columns have another row.
    #[inline]
    pub fn complete(&mut self) {
        self.rows += 1;
        self.nulls.valid();
    }
}

pub struct List {
    item: FieldRef,
    pub items: Box<Column>,
    ends: Vec<i32>,
    nulls: Nulls,
}

impl List {
    /// All items of another row are there.
    #[inline]
    pub fn complete(&mut self) -> Result<(), Failed> {
        self.ends.push(end(self.items.rows())?);
        self.nulls.valid();
        Ok(())
    }
}

pub struct Map {
    entry: FieldRef,
    is_sorted: bool,
    pub keys: Bytes,
    pub values: Box<Column>,
    /// Entries, also those whose key came once more in the same map.
    entries: usize,
    /// Which entries are in the maps; None while that is all of them.
    order: Option<Vec<u32>>,
    /// Among those that are in the maps.
    ends: Vec<i32>,
    nulls: Nulls,
}

impl Map {
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Key and value of another entry are there.
    #[inline]
    pub fn complete_entry(&mut self) -> Result<(), Failed> {
        self.entries += 1;
        end(self.entries)?;
        Ok(())
    }

    /// All entries of another row are there, from `first` on; `order`: those that count, if some of them do not.
    #[inline]
    pub fn complete(&mut self, first: usize, order: Option<Vec<u32>>) -> Result<(), Failed> {
        if order.is_some() || self.order.is_some() {
            let all = self.order.get_or_insert_with(|| (0..first as u32).collect());
            match order {
                Some(order) => all.extend(order),
                None => all.extend(first as u32..self.entries as u32),
            }
        }
        self.ends.push(end(self.order.as_ref().map_or(self.entries, Vec::len))?);
        self.nulls.valid();
        Ok(())
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.truncate(rows);
        self.nulls.truncate(rows);
        let in_maps = self.ends.last().map_or(0, |end| *end as usize);
        match &mut self.order {
            // Those that are in no map stay: a number of another row may be the greatest.
            Some(order) => order.truncate(in_maps),
            None => self.entries = in_maps,
        }
        self.keys.truncate(self.entries);
        self.values.truncate(self.entries);
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let DataType::Struct(fields) = self.entry.data_type().clone() else {
            return Err(ArrowError::SchemaError("the entries of a map are no struct".into()));
        };
        let columns = vec![self.keys.finish()?, self.values.finish()?];
        let mut entries = StructArray::try_new(fields, columns, None)?;
        if let Some(order) = self.order {
            let taken = take(&entries, &UInt32Array::from(order), None)?;
            entries = StructArray::from(taken.to_data());
        }
        let nulls = self.nulls.finish();
        let ends = offsets(&mut self.ends);
        Ok(Arc::new(MapArray::try_new(self.entry, ends, entries, nulls, self.is_sorted)?))
    }
}

/// A column of one type.
pub enum Column {
    Null(usize),
    Boolean(Booleans),
    I8(Numbers<i8>),
    I16(Numbers<i16>),
    U8(Numbers<u8>),
    U16(Numbers<u16>),
    U32(Numbers<u32>),
    U64(Numbers<u64>),
    Int(Numbers<i32>),
    Long(Numbers<i64>),
    Float(Numbers<f32>),
    Double(Numbers<f64>),
    Decimal(Numbers<i128>),
    LongDecimal(Numbers<i256>),
    Bytes(Bytes),
    Fixed(Fixed),
    Struct(Struct),
    List(List),
    Map(Map),
}

impl Column {
    /// An empty column; an error for a type that is not known here.
    pub fn new(kind: &DataType) -> Result<Column, ArrowError> {
        let unknown = || ArrowError::NotYetImplemented(format!("the type {kind}"));
        Ok(match kind {
            DataType::Null => Column::Null(0),
            DataType::Boolean => {
                Column::Boolean(Booleans { bits: BooleanBufferBuilder::new(0), nulls: Nulls::default() })
            }
            DataType::Int8 => Column::I8(Numbers::new(kind)),
            DataType::Int16 => Column::I16(Numbers::new(kind)),
            DataType::UInt8 => Column::U8(Numbers::new(kind)),
            DataType::UInt16 => Column::U16(Numbers::new(kind)),
            DataType::UInt32 => Column::U32(Numbers::new(kind)),
            DataType::UInt64 => Column::U64(Numbers::new(kind)),
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Column::Int(Numbers::new(kind)),
            DataType::Int64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
                Column::Long(Numbers::new(kind))
            }
            DataType::Float32 => Column::Float(Numbers::new(kind)),
            DataType::Float64 => Column::Double(Numbers::new(kind)),
            DataType::Decimal128(..) => Column::Decimal(Numbers::new(kind)),
            DataType::Decimal256(..) => Column::LongDecimal(Numbers::new(kind)),
            DataType::Binary | DataType::Utf8 => Column::Bytes(Bytes::new(kind)),
            DataType::FixedSizeBinary(size) => Column::Fixed(Fixed {
                size: usize::try_from(*size).map_err(|_| unknown())?,
                rows: 0,
                data: Vec::new(),
                nulls: Nulls::default(),
            }),
            DataType::Struct(fields) => Column::Struct(Struct {
                columns: fields.iter().map(|field| Column::new(field.data_type())).collect::<Result<_, _>>()?,
                fields: fields.clone(),
                rows: 0,
                nulls: Nulls::default(),
            }),
            DataType::List(item) => Column::List(List {
                items: Box::new(Column::new(item.data_type())?),
                item: item.clone(),
                ends: Vec::new(),
                nulls: Nulls::default(),
            }),
            DataType::Map(entry, is_sorted) => match entry.data_type() {
                DataType::Struct(fields) if fields.len() == 2 && *fields[0].data_type() == DataType::Utf8 => {
                    Column::Map(Map {
                        keys: Bytes::new(fields[0].data_type()),
                        values: Box::new(Column::new(fields[1].data_type())?),
                        entry: entry.clone(),
                        is_sorted: *is_sorted,
                        entries: 0,
                        order: None,
                        ends: Vec::new(),
                        nulls: Nulls::default(),
                    })
                }
                _ => return Err(unknown()),
            },
            _ => return Err(unknown()),
        })
    }

    /// The bytes of a null row.
    pub fn width(&self) -> usize {
        match self {
            Column::Null(_) => 0,
            Column::Boolean(_) | Column::I8(_) | Column::U8(_) => 1,
            Column::I16(_) | Column::U16(_) => 2,
            Column::Int(_)
            | Column::U32(_)
            | Column::Float(_)
            | Column::Bytes(_)
            | Column::List(_)
            | Column::Map(_) => 4,
            Column::Long(_) | Column::U64(_) | Column::Double(_) => 8,
            Column::Decimal(_) => 16,
            Column::LongDecimal(_) => 32,
            Column::Fixed(column) => column.size,
            Column::Struct(column) => column.columns.iter().map(Column::width).fold(0, usize::saturating_add),
        }
    }

    pub fn rows(&self) -> usize {
        match self {
            Column::Null(rows) => *rows,
            Column::Boolean(column) => column.bits.len(),
            Column::I8(column) => column.values.len(),
            Column::I16(column) => column.values.len(),
            Column::U8(column) => column.values.len(),
            Column::U16(column) => column.values.len(),
            Column::U32(column) => column.values.len(),
            Column::U64(column) => column.values.len(),
            Column::Int(column) => column.values.len(),
            Column::Long(column) => column.values.len(),
            Column::Float(column) => column.values.len(),
            Column::Double(column) => column.values.len(),
            Column::Decimal(column) => column.values.len(),
            Column::LongDecimal(column) => column.values.len(),
            Column::Bytes(column) => column.ends.len(),
            Column::Fixed(column) => column.rows,
            Column::Struct(column) => column.rows,
            Column::List(column) => column.ends.len(),
            Column::Map(column) => column.ends.len(),
        }
    }

    pub fn null(&mut self) {
        self.any(false);
    }

    /// Append null, or any value: in a row that is null as a whole, a mask would only cost time.
    fn any(&mut self, is_valid: bool) {
        match self {
            Column::Null(rows) => *rows += 1,
            Column::Boolean(column) => {
                column.nulls.mark(column.bits.len(), is_valid);
                column.bits.append(false);
            }
            Column::I8(column) => column.any(is_valid),
            Column::I16(column) => column.any(is_valid),
            Column::U8(column) => column.any(is_valid),
            Column::U16(column) => column.any(is_valid),
            Column::U32(column) => column.any(is_valid),
            Column::U64(column) => column.any(is_valid),
            Column::Int(column) => column.any(is_valid),
            Column::Long(column) => column.any(is_valid),
            Column::Float(column) => column.any(is_valid),
            Column::Double(column) => column.any(is_valid),
            Column::Decimal(column) => column.any(is_valid),
            Column::LongDecimal(column) => column.any(is_valid),
            Column::Bytes(column) => column.any(is_valid),
            Column::Fixed(column) => {
                column.nulls.mark(column.rows, is_valid);
                column.rows += 1;
                column.data.resize(column.rows * column.size, 0);
            }
            Column::Struct(column) => {
                column.columns.iter_mut().for_each(|part| part.any(true));
                column.nulls.mark(column.rows, is_valid);
                column.rows += 1;
            }
            Column::List(column) => empty(&mut column.ends, &mut column.nulls, is_valid),
            Column::Map(column) => empty(&mut column.ends, &mut column.nulls, is_valid),
        }
    }

    /// Take back all rows after so many, also one that is there in part.
    pub fn truncate(&mut self, rows: usize) {
        match self {
            Column::Null(all) => *all = rows,
            Column::Boolean(column) => {
                column.bits.truncate(rows);
                column.nulls.truncate(rows);
            }
            Column::I8(column) => column.truncate(rows),
            Column::I16(column) => column.truncate(rows),
            Column::U8(column) => column.truncate(rows),
            Column::U16(column) => column.truncate(rows),
            Column::U32(column) => column.truncate(rows),
            Column::U64(column) => column.truncate(rows),
            Column::Int(column) => column.truncate(rows),
            Column::Long(column) => column.truncate(rows),
            Column::Float(column) => column.truncate(rows),
            Column::Double(column) => column.truncate(rows),
            Column::Decimal(column) => column.truncate(rows),
            Column::LongDecimal(column) => column.truncate(rows),
            Column::Bytes(column) => column.truncate(rows),
            Column::Fixed(column) => {
                column.rows = rows;
                column.data.truncate(rows * column.size);
                column.nulls.truncate(rows);
            }
            Column::Struct(column) => {
                column.columns.iter_mut().for_each(|part| part.truncate(rows));
                column.rows = rows;
                column.nulls.truncate(rows);
            }
            Column::List(column) => {
                column.ends.truncate(rows);
                column.items.truncate(column.ends.last().map_or(0, |end| *end as usize));
                column.nulls.truncate(rows);
            }
            Column::Map(column) => column.truncate(rows),
        }
    }

    pub fn finish(self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Column::Null(rows) => Arc::new(NullArray::new(rows)),
            Column::Boolean(mut column) => {
                let rows = column.bits.len();
                let bits = column.bits.finish().into_inner();
                of_buffers(DataType::Boolean, rows, vec![bits], column.nulls.finish())?
            }
            Column::I8(column) => column.finish()?,
            Column::I16(column) => column.finish()?,
            Column::U8(column) => column.finish()?,
            Column::U16(column) => column.finish()?,
            Column::U32(column) => column.finish()?,
            Column::U64(column) => column.finish()?,
            Column::Int(column) => column.finish()?,
            Column::Long(column) => column.finish()?,
            Column::Float(column) => column.finish()?,
            Column::Double(column) => column.finish()?,
            Column::Decimal(column) => column.finish()?,
            Column::LongDecimal(column) => column.finish()?,
            Column::Bytes(column) => column.finish()?,
            Column::Fixed(mut column) => {
                let kind = DataType::FixedSizeBinary(column.size as i32);
                of_buffers(kind, column.rows, vec![Buffer::from_vec(column.data)], column.nulls.finish())?
            }
            Column::Struct(mut column) => {
                let arrays = column.columns.into_iter().map(Column::finish).collect::<Result<_, _>>()?;
                let nulls = column.nulls.finish();
                Arc::new(StructArray::try_new_with_length(column.fields, arrays, nulls, column.rows)?)
            }
            Column::List(mut column) => {
                let (ends, nulls) = (offsets(&mut column.ends), column.nulls.finish());
                Arc::new(ListArray::try_new(column.item, ends, column.items.finish()?, nulls)?)
            }
            Column::Map(column) => column.finish()?,
        })
    }
}
