//! Reads ranges of Kafka offsets into Arrow record batches.

/// Buffers are filled by the threads of brokers and freed by Python's: the system's allocator would keep what each thread
/// has freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub mod batches;
mod broker;
pub mod codecs;
pub mod columns;
pub mod connection;
pub mod decode;
pub mod messages;
pub mod partitions;
#[cfg(feature = "python")]
mod python;
pub mod queue;
pub mod reader;
pub mod security;
mod sessions;
mod supervisor;
pub mod tokens;
mod transactions;
pub mod wire;
