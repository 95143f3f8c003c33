//! The decoders for Python: buffers of a column in, an array by Arrow's C interface out.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{Array, ArrayRef};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_schema::DataType;
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::decode::avro_plan::{Frame, Reasons, Told, Writer, decode, plan};
use crate::decode::column::Column;
use crate::decode::cursor::Fault;
use crate::decode::input::Input;

/// Of a row of nulls, which may be written as one byte.
const ROW_BYTES_MAX: usize = 1 << 16;

pub(super) fn failed(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// A column; ``pyarrow.array(column)`` takes it without a copy.
#[pyclass(frozen)]
pub struct Decoded(ArrayRef);

impl Decoded {
    pub(super) fn of(array: ArrayRef) -> Decoded {
        Decoded(array)
    }
}

#[pymethods]
impl Decoded {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // Only a wish: the type is the decoder's.
        drop(requested_schema);
        let schema = FFI_ArrowSchema::try_from(self.0.data_type()).map_err(failed)?;
        let array = FFI_ArrowArray::new(&self.0.to_data());
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }
}

/// The buffers of a column: data, offsets, their width, the first offset, validity and its first bit.
pub(super) type Buffers<'a> = (&'a [u8], &'a [u8], usize, i64, Option<&'a [u8]>, usize);

pub(super) fn input(buffers: Buffers<'_>) -> PyResult<Input<'_>> {
    let (data, offsets, width, base, validity, first) = buffers;
    if width != 4 && width != 8 {
        return Err(PyValueError::new_err("offsets have 4 or 8 bytes"));
    }
    Ok(Input { data, offsets, width, base, validity, first })
}

/// Return the type of the only field of a schema in Arrow's IPC format; an error for one that is decoded in Python.
pub(super) fn kind_of(schema: &[u8]) -> PyResult<DataType> {
    let schema = try_schema_from_ipc_buffer(schema).map_err(failed)?;
    let field = schema.fields().first().ok_or_else(|| PyValueError::new_err("no field"))?;
    let width = Column::new(field.data_type()).map_err(failed)?.width();
    if width > ROW_BYTES_MAX {
        return Err(failed(format!("a row of nulls takes {width} bytes")));
    }
    Ok(field.data_type().clone())
}

/// Decodes values of Avro to one type, by a plan for each writer.
#[pyclass(frozen)]
pub struct AvroDecoder {
    kind: DataType,
    frame: Frame,
    has_ids: bool,
    /// By the id of the writer's schema; 0 for all values without ids.
    writers: Mutex<HashMap<u64, Writer>>,
}

#[pymethods]
impl AvroDecoder {
    /// `schema`: in Arrow's IPC format, with one field, whose type is the decoder's. `id_bytes`: of the id after a zero byte
    /// before each value; 0: there is none. `has_ids`: the id says which plan is to be taken.
    #[new]
    fn new(schema: &[u8], id_bytes: usize, has_ids: bool) -> PyResult<AvroDecoder> {
        let kind = kind_of(schema)?;
        if id_bytes > 8 {
            return Err(PyValueError::new_err("an id has at most 8 bytes"));
        }
        Ok(AvroDecoder { kind, frame: Frame(id_bytes), has_ids, writers: Mutex::default() })
    }

    /// Take up the plan of a writer; raise ``ValueError`` for one that cannot be followed.
    fn add(&self, id: u64, steps: Vec<Told>) -> PyResult<()> {
        let plan = plan(steps).map_err(PyValueError::new_err)?;
        self.writers().insert(id, Ok(plan));
        Ok(())
    }

    /// Take up why the values of a writer are bad.
    fn refuse(&self, id: u64, reason: String) {
        self.writers().insert(id, Err(reason));
    }

    /// Return the ids for which there is no plan yet, rising.
    fn unknown(&self, py: Python<'_>, buffers: Buffers<'_>) -> PyResult<BTreeSet<u64>> {
        let input = input(buffers)?;
        if !self.has_ids {
            return Ok(BTreeSet::new());
        }
        py.detach(|| {
            let writers = self.writers();
            let mut unknown = BTreeSet::new();
            let mut last = None;
            for value in input.values() {
                let Some(Ok((id, _))) = value.map_err(failed)?.map(|value| self.frame.split(value)) else { continue };
                if last != Some(id) && !writers.contains_key(&id) {
                    unknown.insert(id);
                }
                last = Some(id);
            }
            Ok(unknown)
        })
    }

    /// Return the column, null for bad values, and why they are bad; raise ``OverflowError`` for too much in one column.
    fn decode(&self, py: Python<'_>, buffers: Buffers<'_>) -> PyResult<(Decoded, Reasons)> {
        let input = input(buffers)?;
        let writer = |id| self.writers().get(if self.has_ids { &id } else { &0 }).cloned();
        match py.detach(|| decode(&self.kind, input, self.frame, writer)) {
            Ok((array, reasons)) => Ok((Decoded(array), reasons)),
            Err(Fault::TooLarge) => Err(PyOverflowError::new_err("too much for one column")),
            Err(Fault::Bad(why) | Fault::Plan(why)) => Err(failed(why)),
        }
    }
}

impl AvroDecoder {
    fn writers(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Writer>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
