//! The partitions that are read, as all threads of a reader see them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::columns::{Filler, Projection};
use crate::connection::{Connecting, Failure};
use crate::messages::{FetchLimits, Wanted};
use crate::queue::{Item, Queue, Trouble};
use crate::wire::{Id, NO_ID};

/// A hole of so many offsets is jumped; through a smaller one it is cheaper to read than to fetch again.
const JUMP_OFFSETS_MIN: i64 = 10_000;
/// Pauses after failures grow from the first to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LAST: Duration = Duration::from_secs(1);
/// A nearer replica is read for so long; then the leader says again which one is near.
const NEARER_FOR: Duration = Duration::from_secs(300);
/// After a failure of a nearer replica, the leader is read for so long.
const LEADER_FOR: Duration = Duration::from_secs(30);
/// Nobody is told of the same refusal again before that.
const REFUSED_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Settings {
    /// Hosts and ports that are asked first.
    pub brokers: Vec<(String, u16)>,
    pub connecting: Connecting,
    pub limits: FetchLimits,
    pub projection: Projection,
    /// Records in a batch, at most.
    pub rows_max: usize,
    /// Bytes of batches that wait to be taken.
    pub queued_bytes_max: usize,
    /// Of a batch in zstd, unpacked.
    pub zstd_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Wanted,
    /// Read to its end, stopped, or in trouble.
    Over,
}

/// One partition.
pub struct Part {
    pub topic: String,
    pub partition: i32,
    pub id: Id,
    /// Wanted offsets, rising and apart.
    pub ranges: Arc<Vec<(i64, i64)>>,
    /// Where the next fetch begins.
    pub position: i64,
    /// Of the record before the position; -1: not known.
    pub last_epoch: i32,
    pub leader: i32,
    pub leader_epoch: i32,
    /// A broker with a replica that is read instead of the leader's, and until when.
    pub nearer: Option<(i32, Instant)>,
    /// The leader itself is read until then.
    pub led_until: Instant,
    /// The broker whose thread fetches it, or decodes what it has fetched. No other may ask for it meanwhile, else its
    /// records could be handed out in another order.
    pub owner: Option<i32>,
    pub state: State,
    pub log_end: Option<i64>,
    pub failures: u32,
    pub not_before: Instant,
    pub filler: Arc<Mutex<Filler>>,
}

impl Part {
    pub fn end(&self) -> i64 {
        self.ranges.last().map_or(0, |range| range.1)
    }

    /// What a fetch is to bring.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            topic: &self.topic,
            id: self.id,
            partition: self.partition,
            leader_epoch: self.leader_epoch,
            offset: self.position,
            last_epoch: self.last_epoch,
        }
    }

    /// The broker to fetch from.
    pub fn source(&self, now: Instant) -> i32 {
        self.nearer.filter(|(_, until)| now < *until).map_or(self.leader, |(broker, _)| broker)
    }

    /// Read a nearer replica for a while.
    pub fn read_nearer(&mut self, broker: i32) {
        self.nearer = Some((broker, Instant::now() + NEARER_FOR));
    }

    /// Read the leader for a while.
    pub fn read_leader(&mut self) {
        self.nearer = None;
        self.led_until = Instant::now() + LEADER_FOR;
    }

    /// Move the position behind what was fetched, and over a large hole.
    pub fn advance(&mut self, position: i64, epoch: i32) {
        (self.position, self.last_epoch) = (position, epoch);
        let next = self.ranges.partition_point(|range| range.1 <= position);
        if let Some((start, _)) = self.ranges.get(next) {
            if start.saturating_sub(position) >= JUMP_OFFSETS_MIN {
                (self.position, self.last_epoch) = (*start, -1);
            }
        } else {
            self.state = State::Over;
        }
    }
}

/// What changes while a reader reads.
pub struct Table {
    pub parts: Vec<Part>,
    pub brokers: HashMap<i32, (String, u16)>,
    /// Whether leaders have to be looked for.
    pub is_stale: bool,
    /// Brokers with a thread.
    pub served: HashSet<i32>,
    pub threads: usize,
    /// How long a broker throttles this client, and until when.
    pub throttled: Option<(Duration, Instant)>,
    refused_at: Option<Instant>,
}

impl Table {
    pub fn wanted(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.state == State::Wanted)
    }

    /// A broker cannot be read: the partitions that it does not lead are read from their leaders.
    pub fn leave_nearer(&mut self, broker: i32) {
        for part in &mut self.parts {
            if part.nearer.is_some_and(|(nearer, _)| nearer == broker) {
                part.read_leader();
            }
        }
    }

    /// A request for a partition has failed: look for its leader, and ask again later.
    pub fn back_off(&mut self, part: usize) {
        let part = &mut self.parts[part];
        part.failures = (part.failures + 1).min(16);
        part.not_before = Instant::now() + pause(part.failures);
        self.is_stale = true;
    }
}

/// Return the pause after so many failures.
pub fn pause(failures: u32) -> Duration {
    (PAUSE_FIRST * (1 << failures.min(10))).min(PAUSE_LAST)
}

/// Lock, also after a thread has panicked with the lock held: what it guards is whole at any time.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub struct Shared {
    pub settings: Settings,
    pub queue: Queue,
    pub stop: AtomicBool,
    table: Mutex<Table>,
    changed: Condvar,
}

impl Shared {
    pub fn new(settings: Settings) -> Shared {
        let table = Table {
            parts: Vec::new(),
            brokers: HashMap::new(),
            is_stale: false,
            served: HashSet::new(),
            threads: 0,
            throttled: None,
            refused_at: None,
        };
        Shared {
            queue: Queue::new(settings.queued_bytes_max),
            settings,
            stop: AtomicBool::new(false),
            table: Mutex::new(table),
            changed: Condvar::new(),
        }
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        locked(&self.table)
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Wake all threads: something has changed.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Wait for a change, at most so long.
    pub fn wait(&self, table: MutexGuard<'_, Table>, at_most: Duration) {
        if !self.is_stopped() {
            drop(self.changed.wait_timeout(table, at_most));
        }
    }

    /// Wait, whatever changes; a stop ends it.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if self.is_stopped() || left.is_zero() {
                break;
            }
            self.wait(self.table(), left);
        }
    }

    /// Take up a partition; return its number.
    pub fn add(&self, topic: &str, partition: i32, ranges: Vec<(i64, i64)>, id: Option<Id>) -> usize {
        let mut table = self.table();
        let filler = Filler::new(self.settings.projection.clone(), topic, partition);
        table.parts.push(Part {
            topic: topic.to_owned(),
            partition,
            id: id.unwrap_or(NO_ID),
            position: ranges.first().map_or(0, |range| range.0),
            last_epoch: -1,
            leader: -1,
            leader_epoch: -1,
            nearer: None,
            led_until: Instant::now(),
            owner: None,
            state: if ranges.is_empty() { State::Over } else { State::Wanted },
            log_end: None,
            failures: 0,
            not_before: Instant::now(),
            filler: Arc::new(Mutex::new(filler)),
            ranges: Arc::new(ranges),
        });
        table.is_stale = true;
        self.wake();
        table.parts.len() - 1
    }

    /// Read a partition no further.
    pub fn end(&self, part: usize) {
        if let Some(part) = self.table().parts.get_mut(part) {
            part.state = State::Over;
        }
    }

    /// Report why a partition is not read on; false: nobody listens.
    pub fn stop_part(&self, part: usize, trouble: Trouble) -> bool {
        self.end(part);
        self.queue.put(Item::Stopped { part, trouble }, 0)
    }

    /// Report a refusal, unless one was reported just now.
    pub fn refused(&self, why: String) {
        let mut table = self.table();
        if table.refused_at.is_none_or(|at| at.elapsed() >= REFUSED_EVERY) {
            table.refused_at = Some(Instant::now());
            drop(table);
            self.queue.put(Item::Refused(why), 0);
        }
    }

    /// Report why there is no connection, unless it may work again.
    pub fn not_connected(&self, failure: Failure) {
        match failure {
            Failure::Io(_) => {}
            Failure::Refused(why) => self.refused(why),
            Failure::TooOld => self.too_old(),
        }
    }

    /// The brokers know too little: nothing can be read.
    fn too_old(&self) {
        let wanted: Vec<usize> = {
            let table = self.table();
            (0..table.parts.len()).filter(|part| table.parts[*part].state == State::Wanted).collect()
        };
        for part in wanted {
            self.stop_part(part, Trouble::TooOld);
        }
    }
}
