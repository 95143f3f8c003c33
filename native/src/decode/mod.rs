//! Decodes the values of a column, each row for itself: its value, or the reason why it is bad.

pub mod avro;
pub mod avro_plan;
pub mod column;
pub mod cursor;
pub mod frames;
pub mod input;
pub mod json;
mod json_numbers;
mod json_text;
mod json_times;
pub mod protobuf;
pub mod protobuf_plan;
#[cfg(feature = "python")]
pub mod python;
#[cfg(feature = "python")]
pub mod python_values;
pub mod values;
pub mod wire;
