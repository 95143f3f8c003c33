//! The reader for Python: batches by Arrow's C interface, the interpreter lock released while it waits.

use std::mem::forget;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{Array, RecordBatch, StructArray};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::batches::Fault;
use crate::columns::{Column, Projection};
use crate::connection::Connecting;
use crate::messages::FetchLimits;
use crate::partitions::Settings;
use crate::queue::{Item, Trouble};
use crate::reader;
use crate::security::{Certificates, Credentials, Mechanism, Security};
use crate::tokens::{Token, Tokens};

/// Of a token: as good as always, and no overflow of a clock.
const VALID_MAX_S: f64 = 1e9;

fn failed(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Records of one partition; ``pyarrow.record_batch(records)`` takes them without a copy.
#[pyclass(frozen)]
struct Records(RecordBatch);

#[pymethods]
impl Records {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.0.schema().as_ref()).map_err(failed)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // Only a wish: the schema is the reader's.
        drop(requested_schema);
        let rows = StructArray::from(self.0.clone());
        let array = PyCapsule::new_with_value(py, FFI_ArrowArray::new(&rows.to_data()), c"arrow_array")?;
        Ok((self.__arrow_c_schema__(py)?, array))
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }
}

/// Kind, text, and numbers of a trouble.
type Told = (&'static str, String, Vec<i64>);
/// A partition's number, the offset below which everything wanted has been returned, records, and trouble.
type Taken = (Option<usize>, Option<i64>, Option<Records>, Option<Told>);

fn told(trouble: Trouble) -> Told {
    let text = String::new();
    match trouble {
        Trouble::Batch { first, end, fault: Fault::Unreadable(why) } => ("unreadable", why, vec![first, end]),
        Trouble::Batch { first, end, fault: Fault::TooLarge(size) } => {
            let size = size.map(|size| i64::try_from(size).unwrap_or(i64::MAX));
            ("too large", text, [first, end].into_iter().chain(size).collect())
        }
        Trouble::Batch { first, end, fault: Fault::HeaderName(offset) } => {
            ("header name", text, vec![first, end, offset])
        }
        Trouble::OutOfRange => ("out of range", text, vec![]),
        Trouble::Truncated { end } => ("truncated", text, vec![end]),
        Trouble::Recreated { known, found } => {
            ("recreated", format!("{} {}", encoded(&known), encoded(&found)), vec![])
        }
        Trouble::Broker { error } => ("broker", text, vec![error.into()]),
        Trouble::TooOld => ("too old", text, vec![]),
    }
}

/// A topic's id as Kafka's tools show it.
fn encoded(id: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    URL_SAFE_NO_PAD.encode(id)
}

fn decoded(id: &str) -> PyResult<[u8; 16]> {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let bytes = URL_SAFE_NO_PAD.decode(id).map_err(|_| PyValueError::new_err("no id of a topic"))?;
    bytes.try_into().map_err(|_| PyValueError::new_err("no id of a topic"))
}

/// How to connect and how much to read.
#[pyclass(frozen)]
struct Options(Settings);

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (brokers, columns, *, client_id, committed, rows_max, fetch_bytes, fetch_min_bytes, partition_bytes,
        wait_ms, queued_bytes, zstd_bytes, timeout_s, tls=None, credentials=None, by_token=false,
        rack=String::new()))]
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn new(
        brokers: Vec<(String, u16)>,
        columns: Vec<String>,
        client_id: String,
        committed: bool,
        rows_max: usize,
        fetch_bytes: i32,
        fetch_min_bytes: i32,
        partition_bytes: i32,
        wait_ms: i32,
        queued_bytes: usize,
        zstd_bytes: usize,
        timeout_s: f64,
        tls: Option<(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>)>,
        credentials: Option<(String, String, String)>,
        by_token: bool,
        rack: String,
    ) -> PyResult<Options> {
        let named =
            |name: &String| Column::named(name).ok_or_else(|| PyValueError::new_err(format!("no column {name}")));
        let certificates = tls.map(|(authorities, chain, key)| Certificates { authorities, chain, key });
        let credentials = credentials
            .map(|(mechanism, user, password)| {
                let known = Mechanism::ALL.into_iter().find(|known| known.name() == mechanism);
                let mechanism = known.ok_or_else(|| PyValueError::new_err("an unknown mechanism"))?;
                Ok::<_, PyErr>(Credentials::Password { mechanism, user, password })
            })
            .transpose()?;
        let credentials = if by_token { Some(Credentials::Tokens(Arc::new(Tokens::default()))) } else { credentials };
        if brokers.is_empty() {
            return Err(PyValueError::new_err("no brokers"));
        }
        let timeout =
            Duration::try_from_secs_f64(timeout_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Options(Settings {
            brokers,
            connecting: Connecting {
                client: client_id,
                timeout,
                security: Security::new(certificates, credentials)
                    .map_err(|error| PyValueError::new_err(error.to_string()))?,
            },
            limits: FetchLimits {
                wait_ms,
                min_bytes: fetch_min_bytes,
                max_bytes: fetch_bytes,
                partition_bytes,
                committed,
                rack,
            },
            projection: Projection::new(columns.iter().map(named).collect::<PyResult<_>>()?),
            rows_max: rows_max.max(1),
            queued_bytes_max: queued_bytes,
            zstd_bytes_max: zstd_bytes,
        }))
    }
}

/// Reads exact sets of offsets of partitions.
#[pyclass(frozen)]
struct Reader {
    /// None once it is dropped.
    reader: Option<reader::Reader>,
    process: u32,
}

#[pymethods]
impl Reader {
    #[new]
    fn new(options: &Options) -> PyResult<Reader> {
        let reader = reader::Reader::new(options.0.clone()).map_err(failed)?;
        Ok(Reader { reader: Some(reader), process: process::id() })
    }

    /// Take up a partition with its wanted offsets, rising and apart; return its number.
    #[pyo3(signature = (topic, partition, ranges, topic_id=None))]
    fn add(&self, topic: &str, partition: i32, ranges: Vec<(i64, i64)>, topic_id: Option<&str>) -> PyResult<usize> {
        Ok(self.here()?.add(topic, partition, ranges, topic_id.map(decoded).transpose()?))
    }

    /// Read a partition no further.
    fn stop(&self, part: usize) -> PyResult<()> {
        self.here()?.stop(part);
        Ok(())
    }

    /// Connect with another token from now on, as long as it is valid.
    fn put_token(&self, text: String, extensions: Vec<(String, String)>, valid_s: f64) -> PyResult<()> {
        let valid = Duration::try_from_secs_f64(valid_s.clamp(0.0, VALID_MAX_S)).unwrap_or_default();
        self.here()?.put_token(Token { text, extensions, valid_until: Instant::now() + valid });
        Ok(())
    }

    /// Return what there is, at most so many; wait for the first one.
    fn take(&self, py: Python<'_>, count: usize, wait_s: f64) -> PyResult<Vec<Taken>> {
        let reader = self.here()?;
        let wait = Duration::try_from_secs_f64(wait_s).map_err(failed)?;
        let items = py.detach(|| reader.take(count, wait));
        let taken = items.into_iter().map(|item| match item {
            Item::Records { part, records, end } => (Some(part), Some(end), Some(Records(records)), None),
            Item::Moved { part, end } => (Some(part), Some(end), None, None),
            Item::Stopped { part, trouble } => (Some(part), None, None, Some(told(trouble))),
            Item::Refused(why) => (None, None, None, Some(("refused", why, vec![]))),
        });
        Ok(taken.collect())
    }

    /// Return where logs end, by the numbers of partitions, as far as it is known.
    fn log_ends(&self) -> PyResult<Vec<(usize, i64)>> {
        Ok(self.here()?.log_ends())
    }

    /// Return for how many seconds a broker throttles this client at a time, if one does.
    fn throttled_s(&self) -> PyResult<Option<f64>> {
        Ok(self.here()?.throttled().map(|time| time.as_secs_f64()))
    }

    fn close(&self, py: Python<'_>) {
        if let Ok(reader) = self.here() {
            py.detach(|| reader.close());
        }
    }
}

impl Reader {
    /// In a forked process the reader's threads do not exist.
    fn here(&self) -> PyResult<&reader::Reader> {
        let here = self.reader.as_ref().filter(|_| self.process == process::id());
        here.ok_or_else(|| failed("a reader cannot be used in a forked process"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.process != process::id() {
            // To drop it could wait for a lock of a thread that does not exist here.
            forget(self.reader.take());
        }
    }
}

#[pymodule]
mod kafka_ordered_ops_native {
    #[pymodule_export]
    use super::{Options, Reader, Records};
    #[pymodule_export]
    use crate::decode::python::{AvroDecoder, Decoded};
    #[pymodule_export]
    use crate::decode::python_values::{JsonDecoder, ProtobufDecoder};

    /// Counts changes of what is above; kafka-ordered-ops reads with the one that it knows.
    #[pymodule_export]
    const INTERFACE: u32 = 3;
}
