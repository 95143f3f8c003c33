//! Reads exact sets of offsets of partitions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::partitions::{Settings, Shared};
use crate::queue::Item;
use crate::supervisor::supervise;
use crate::tokens::Token;
use crate::wire::Id;

/// Threads that wait in the system for longer, for the address of a host or for a connection, end by themselves.
const END_WAIT: Duration = Duration::from_millis(150);

pub struct Reader {
    shared: Arc<Shared>,
}

impl Reader {
    pub fn new(settings: Settings) -> std::io::Result<Reader> {
        let shared = Arc::new(Shared::new(settings));
        shared.table().threads = 1;
        let theirs = shared.clone();
        Builder::new().name("kafka-read".to_owned()).spawn(move || supervise(theirs))?;
        Ok(Reader { shared })
    }

    /// Take up a partition, of a topic with this id; return its number.
    pub fn add(&self, topic: &str, partition: i32, ranges: Vec<(i64, i64)>, id: Option<Id>) -> usize {
        self.shared.add(topic, partition, ranges, id)
    }

    /// Read a partition no further; what is under way may still be taken.
    pub fn stop(&self, part: usize) {
        self.shared.end(part);
    }

    /// Connect with another token from now on.
    pub fn put_token(&self, token: Token) {
        self.shared.settings.connecting.security.put_token(token);
    }

    pub fn take(&self, count: usize, wait: Duration) -> Vec<Item> {
        self.shared.queue.take(count, wait)
    }

    /// Where the logs end, by the last fetches, by the numbers of partitions.
    pub fn log_ends(&self) -> Vec<(usize, i64)> {
        let table = self.shared.table();
        let ends = table.parts.iter().enumerate();
        ends.filter_map(|(number, part)| part.log_end.map(|end| (number, end))).collect()
    }

    /// How long a broker throttles this client at a time, if one does.
    pub fn throttled(&self) -> Option<Duration> {
        let throttled = self.shared.table().throttled;
        throttled.filter(|(time, until)| *until + *time >= Instant::now()).map(|(time, _)| time)
    }

    pub fn close(&self) {
        if self.shared.stop.swap(true, Relaxed) {
            return;
        }
        self.shared.queue.close();
        self.shared.wake();
        let until = Instant::now() + END_WAIT;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if self.shared.table().threads == 0 {
                break;
            }
            self.shared.wake();
            std::thread::sleep(left.min(Duration::from_millis(2)));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.close();
    }
}
