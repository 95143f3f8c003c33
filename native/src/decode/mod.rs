//! Decodes the values of a column, each row for itself: its value, or the reason why it is bad.

pub mod avro;
pub mod avro_plan;
pub mod column;
pub mod cursor;
pub mod input;
#[cfg(feature = "python")]
pub mod python;
