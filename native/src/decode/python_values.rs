//! The decoders of Protobuf and JSON for Python.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::frames::Framing;
use super::json;
use super::protobuf_plan::{Enum, Field, Kind, Message, Shape};
use super::python::{Buffers, Decoded, failed, input, kind_of};
use super::values::{Json, Protobuf};

fn invalid(error: &str) -> PyErr {
    PyValueError::new_err(error.to_owned())
}

/// The type of a value: Protobuf's number of it or a name, the place of its message or enum, and whether it has a wrapper.
type KindPlan = (String, usize, bool);
/// A field: number, type, type of keys, whether it is a list, has presence, is required, and its oneof.
type FieldPlan = (u32, KindPlan, Option<String>, bool, bool, bool, Option<u32>);

/// Decodes messages of Protobuf.
#[pyclass(frozen)]
pub struct ProtobufDecoder(Protobuf);

#[pymethods]
impl ProtobufDecoder {
    /// Args: the type of values, the messages, each after those in it, the enums, and the framing.
    #[new]
    fn new(
        kind: &[u8],
        messages: Vec<Vec<FieldPlan>>,
        enums: Vec<(Vec<(i32, String)>, bool)>,
        framing: &str,
    ) -> PyResult<ProtobufDecoder> {
        let enums: Vec<_> = enums.into_iter().map(|(names, is_closed)| Arc::new(Enum::new(names, is_closed))).collect();
        let mut made: Vec<Arc<Message>> = Vec::new();
        for fields in messages {
            let fields = fields.into_iter().map(|plan| field(plan, &made, &enums));
            let message = Message::new(fields.collect::<Option<_>>().ok_or_else(|| invalid("an unknown type"))?);
            made.push(Arc::new(message));
        }
        let message = made.pop().ok_or_else(|| invalid("no message"))?;
        let framing = Framing::named(framing).ok_or_else(|| invalid("an unknown framing"))?;
        let kind = kind_of(kind)?;
        Ok(ProtobufDecoder(Protobuf { kind, message, framing }))
    }

    /// Return the different frames of values.
    fn frames(&self, py: Python<'_>, buffers: Buffers<'_>) -> PyResult<Vec<Vec<u8>>> {
        let input = input(buffers)?;
        py.detach(|| self.0.frames(input)).map_err(failed)
    }

    /// Return values with these frames, and the rows that are left to Python.
    fn decode(&self, py: Python<'_>, buffers: Buffers<'_>, frames: Vec<Vec<u8>>) -> PyResult<(Decoded, Vec<usize>)> {
        let input = input(buffers)?;
        let (array, left) = py.detach(|| self.0.decode(input, &frames)).map_err(failed)?;
        Ok((Decoded::of(array), left))
    }
}

/// A column, the rows that are left to Python, and fields without a column: of how many values, and how often each.
type Counted = (Decoded, Vec<usize>, u64, HashMap<String, u64>);

/// Decodes texts of JSON.
#[pyclass(frozen)]
pub struct JsonDecoder(Json);

#[pymethods]
impl JsonDecoder {
    /// Args: the type of values, whether other fields are bad, and the framing.
    #[new]
    fn new(kind: &[u8], refuses_unknown: bool, framing: &str) -> PyResult<JsonDecoder> {
        let kind = kind_of(kind)?;
        let plan =
            json::Plan::new(&kind, refuses_unknown).ok_or_else(|| invalid("a type that is decoded in Python"))?;
        let framing = Framing::named(framing).ok_or_else(|| invalid("an unknown framing"))?;
        Ok(JsonDecoder(Json { kind, plan, framing }))
    }

    /// Return values, and the rows that are left to Python.
    fn decode(&self, py: Python<'_>, buffers: Buffers<'_>) -> PyResult<(Decoded, Vec<usize>)> {
        let input = input(buffers)?;
        let (array, left) = py.detach(|| self.0.decode(input)).map_err(failed)?;
        Ok((Decoded::of(array), left))
    }

    /// Return the same, how many values have fields without a column, and the counts of these fields by their paths.
    fn decode_counted(&self, py: Python<'_>, buffers: Buffers<'_>) -> PyResult<Counted> {
        let input = input(buffers)?;
        let ((array, left), discarded) = py.detach(|| self.0.decode_counted(input)).map_err(failed)?;
        let fields = discarded.fields.into_iter();
        let fields = fields.map(|(path, count)| (String::from_utf8_lossy(&path).into_owned(), count)).collect();
        Ok((Decoded::of(array), left, discarded.texts, fields))
    }
}

fn field(plan: FieldPlan, messages: &[Arc<Message>], enums: &[Arc<Enum>]) -> Option<Field> {
    let (number, (name, place, is_wrapped), key, is_list, has_presence, is_required, oneof) = plan;
    let mut kind = match name.as_str() {
        "message" => Kind::Message(messages.get(place)?.clone()),
        "enum" => Kind::Enum(enums.get(place)?.clone()),
        name => scalar(name)?,
    };
    if is_wrapped {
        kind = Kind::Wrapper(Box::new(kind));
    }
    let shape = match key {
        Some(key) => Shape::Map(scalar(&key)?),
        None if is_list => Shape::List,
        None => Shape::Single,
    };
    let oneof = oneof.map_or(Some(0), |group| 1u64.checked_shl(group))?;
    Some(Field { has_presence, is_required, oneof, ..Field::new(number, kind, shape) })
}

fn scalar(name: &str) -> Option<Kind> {
    Some(match name {
        "double" => Kind::Double,
        "float" => Kind::Float,
        "int64" => Kind::Int64,
        "uint64" => Kind::Uint64,
        "int32" => Kind::Int32,
        "fixed64" => Kind::Fixed64,
        "fixed32" => Kind::Fixed32,
        "bool" => Kind::Bool,
        "string" => Kind::Text,
        "bytes" => Kind::Bytes,
        "uint32" => Kind::Uint32,
        "sfixed32" => Kind::Sfixed32,
        "sfixed64" => Kind::Sfixed64,
        "sint32" => Kind::Sint32,
        "sint64" => Kind::Sint64,
        "timestamp" => Kind::Timestamp,
        "duration" => Kind::Duration,
        _ => return None,
    })
}
