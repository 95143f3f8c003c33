//! What brokers' threads hand to the reader, bounded by its bytes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;

use crate::batches::Fault;
use crate::columns::BATCH_BYTES;
use crate::partitions::locked;
use crate::wire::Id;

/// Why a partition is not read on.
#[derive(Debug)]
pub enum Trouble {
    /// A batch with these offsets cannot be read.
    Batch { first: i64, end: i64, fault: Fault },
    /// The position is not in the log.
    OutOfRange,
    /// Below the position, the log is another one than was read.
    Truncated { end: i64 },
    /// The topic has another id than before.
    Recreated { known: Id, found: Id },
    /// The broker reports an error that asking again does not end.
    Broker { error: i16 },
    /// The brokers are older than Kafka 2.8.
    TooOld,
}

#[derive(Debug)]
pub enum Item {
    /// Records of a partition. Everything wanted below `end` has been handed out with it.
    Records { part: usize, records: RecordBatch, end: i64 },
    /// Only the position has moved.
    Moved { part: usize, end: i64 },
    /// The partition is not read on.
    Stopped { part: usize, trouble: Trouble },
    /// The cluster refuses or does not know something: ask it what.
    Refused(String),
}

#[derive(Default)]
struct Inner {
    items: VecDeque<(usize, Item)>,
    bytes: usize,
    /// The number of the next one who comes with an item, and of the next one to be let in: else one broker's thread
    /// could pass the others again and again.
    coming: u64,
    next: u64,
    is_closed: bool,
}

pub struct Queue {
    inner: Mutex<Inner>,
    filled: Condvar,
    emptied: Condvar,
    bytes_max: usize,
}

impl Queue {
    pub fn new(bytes_max: usize) -> Queue {
        Queue { inner: Mutex::default(), filled: Condvar::new(), emptied: Condvar::new(), bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }

    /// Wait for room, and put an item in; false: nobody takes any more.
    pub fn put(&self, item: Item, bytes: usize) -> bool {
        let mut inner = self.lock();
        let mine = inner.coming;
        inner.coming += 1;
        while !inner.is_closed && (mine != inner.next || inner.bytes > 0 && inner.bytes + bytes > self.bytes_max) {
            inner = self.emptied.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        if inner.is_closed {
            return false;
        }
        inner.next += 1;
        self.emptied.notify_all();
        inner.bytes += bytes;
        inner.items.push_back((bytes, item));
        self.filled.notify_one();
        true
    }

    /// Take what there is, at most so many items and a batch's bytes, which nothing bounds any more; wait for the first one.
    pub fn take(&self, count: usize, wait: Duration) -> Vec<Item> {
        let until = Instant::now() + wait;
        let mut inner = self.lock();
        while inner.items.is_empty() && !inner.is_closed {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                break;
            };
            inner = self.filled.wait_timeout(inner, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        let mut left = BATCH_BYTES;
        let fits = |(bytes, _): &&(usize, Item)| {
            let fits = left > 0;
            left = left.saturating_sub(*bytes);
            fits
        };
        let count = inner.items.iter().take(count).take_while(fits).count();
        let taken: Vec<(usize, Item)> = inner.items.drain(..count).collect();
        inner.bytes -= taken.iter().map(|(bytes, _)| bytes).sum::<usize>();
        self.emptied.notify_all();
        taken.into_iter().map(|(_, item)| item).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().items.is_empty()
    }

    pub fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.items.clear();
        inner.bytes = 0;
        self.filled.notify_all();
        self.emptied.notify_all();
    }
}
