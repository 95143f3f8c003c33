//! Reads ranges of Kafka offsets into Arrow record batches.

/// Buffers are filled by the threads of brokers and freed by Python's: the system's allocator would keep what each thread
/// has freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A thread takes back what others have freed of its memory at each hundredth of its allocations of this size or more: by
/// then, a hundred batches may be free.
const TAKEN_BACK_AFTER: usize = 100;
const COUNTED_BYTES: usize = 2 << 10;

/// Let this thread take back what others have freed of its memory.
fn take_back_memory() {
    for _ in 0..TAKEN_BACK_AFTER {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(COUNTED_BYTES)));
    }
}

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
