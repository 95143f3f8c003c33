//! The thread of one broker: it fetches the partitions that the broker leads, or has a nearer replica of, and decodes
//! what comes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batches::Batch;
use crate::codecs::Codecs;
use crate::columns::Filler;
use crate::connection::{Connection, Failure};
use crate::messages::{self, Fetched, Wanted};
use crate::partitions::{Shared, State, Table, locked, pause};
use crate::queue::{Item, Trouble};
use crate::sessions::After;
use crate::supervisor;
use crate::transactions::Transactions;
use crate::wire::{Id, NO_ID};

/// The longest wait without partitions, and while all of them back off.
const IDLE: Duration = Duration::from_secs(1);
const BACKED_OFF: Duration = Duration::from_millis(20);

/// So many bytes of a partition are handed out, however many partitions share the memory.
const COLLECTED_BYTES_MIN: usize = 16 << 10;

/// Broker error codes: <https://kafka.apache.org/protocol#protocol_error_codes>
mod code {
    pub const NONE: i16 = 0;
    pub const OFFSET_OUT_OF_RANGE: i16 = 1;
    pub const CORRUPT_MESSAGE: i16 = 2;
    pub const TOPIC_AUTHORIZATION_FAILED: i16 = 29;
    pub const INVALID_RECORD: i16 = 87;
}

/// A partition that was asked for, from a position on.
#[derive(Clone, Copy)]
struct Asked {
    part: usize,
    position: i64,
}

/// A request that is under way.
struct Pending {
    version: i16,
    asked: Vec<Asked>,
}

/// What is to be done with a partition that came.
enum Work<'a> {
    Decode { fetched: Fetched<'a>, reached: i64, is_over: bool },
    Stop(Trouble),
}

/// Fetch from a broker until the reader is stopped.
pub fn serve(shared: Arc<Shared>, number: i32) {
    let codecs = Codecs::new(shared.settings.zstd_bytes_max);
    let mut broker = Broker { shared, number, connection: None, codecs, turn: 0, failures: 0, pending: None };
    while !broker.shared.is_stopped() && broker.step() {}
    broker.end_session();
    let mut table = broker.shared.table();
    table.served.remove(&number);
    table.threads -= 1;
    broker.shared.wake();
}

struct Broker {
    shared: Arc<Shared>,
    number: i32,
    connection: Option<Connection>,
    codecs: Codecs,
    /// Rotates the order of partitions: whichever is first is served, however large its batch.
    turn: usize,
    failures: u32,
    pending: Option<Pending>,
}

impl Broker {
    /// Fetch once; false: nobody listens any more.
    fn step(&mut self) -> bool {
        if self.pending.is_none() && !self.begin() {
            return true;
        }
        let (Some(pending), Some(connection)) = (self.pending.take(), self.connection.as_mut()) else {
            return true;
        };
        let settings = &self.shared.settings;
        let timeout = settings.connecting.timeout + Duration::from_millis(settings.limits.wait_ms as u64);
        if connection.receive(timeout, &self.shared.stop).is_err() {
            return self.shared.is_stopped() || self.lose(&pending.asked);
        }
        let response = std::mem::take(&mut connection.response);
        let fetched = match messages::read_fetch(pending.version, &response) {
            Ok(fetched) if connection.fetch_session.answered(fetched.error, fetched.session) != After::Failed => {
                fetched
            }
            _ => return self.lose(&pending.asked),
        };
        // Positions first: the next request is under way while this response is decoded.
        let work = self.note(&pending.asked, fetched.partitions);
        if fetched.throttled_ms > 0 {
            let time = Duration::from_millis(fetched.throttled_ms as u64);
            self.shared.table().throttled = Some((time, Instant::now() + time));
            self.shared.sleep(time);
        }
        self.pending = self.ask();
        let collecting = self.shared.table().wanted().count();
        let collected_max = self.shared.settings.queued_bytes_max / (2 * collecting.max(1));
        for (asked, work) in work {
            let is_heard = match work {
                Work::Stop(trouble) => {
                    self.flush(asked.part, asked.position) && self.shared.stop_part(asked.part, trouble)
                }
                Work::Decode { fetched, reached, is_over } => {
                    self.decode(asked, fetched, reached, is_over, collected_max)
                }
            };
            if !is_heard {
                return false;
            }
        }
        self.release(&pending.asked);
        if let Some(connection) = self.connection.as_mut() {
            // Its memory, for the next one.
            connection.response = response;
        }
        true
    }

    /// Connect if necessary, and ask; false: there is nothing to ask now.
    fn begin(&mut self) -> bool {
        let shared = self.shared.clone();
        let address = {
            let table = shared.table();
            let now = Instant::now();
            if !table.wanted().any(|part| part.source(now) == self.number) {
                shared.wait(table, IDLE);
                return false;
            }
            table.brokers.get(&self.number).cloned()
        };
        if self.connection.is_none() {
            let opened = match &address {
                Some((host, port)) => Connection::open(&shared.settings.connecting, host, *port, &shared.stop),
                None => Err(Failure::Io(std::io::ErrorKind::NotFound.into())),
            };
            match opened {
                Ok(connection) => (self.connection, self.failures) = (Some(connection), 0),
                Err(failure) => {
                    self.not_connected(failure);
                    return false;
                }
            }
        }
        self.pending = self.ask();
        if self.pending.is_none() {
            shared.wait(shared.table(), BACKED_OFF);
        }
        self.pending.is_some()
    }

    /// Authenticate again, where it is time to; a connection on which this fails is made again.
    fn renew(&mut self) {
        let shared = &self.shared;
        let renewed = self.connection.as_mut().map(|one| one.renew(&shared.settings.connecting, &shared.stop));
        if let Some(Err(failure)) = renewed {
            self.connection = None;
            shared.not_connected(failure);
        }
    }

    fn not_connected(&mut self, failure: Failure) {
        self.shared.not_connected(failure);
        let mut table = self.shared.table();
        table.is_stale = true;
        table.leave_nearer(self.number);
        drop(table);
        self.shared.wake();
        self.failures += 1;
        self.shared.sleep(pause(self.failures));
    }

    /// Send the next request; None: nothing may be asked now.
    fn ask(&mut self) -> Option<Pending> {
        self.renew();
        let connection = self.connection.as_mut()?;
        let mut table = self.shared.table();
        let now = Instant::now();
        let may_ask = |table: &Table, part: usize| {
            let part = &table.parts[part];
            let is_free = part.owner.is_none_or(|owner| owner == self.number);
            part.state == State::Wanted && part.source(now) == self.number && part.not_before <= now && is_free
        };
        let mut numbers: Vec<usize> = (0..table.parts.len()).filter(|part| may_ask(&table, *part)).collect();
        if numbers.is_empty() {
            return None;
        }
        let turn = self.turn % numbers.len();
        numbers.rotate_left(turn);
        self.turn = self.turn.wrapping_add(1);
        let asked =
            numbers.iter().map(|number| Asked { part: *number, position: table.parts[*number].position }).collect();
        let wanted: Vec<(usize, Wanted)> =
            numbers.iter().map(|number| (*number, table.parts[*number].wanted())).collect();
        let version = messages::fetch_version(connection.versions, &wanted);
        let limits = &self.shared.settings.limits;
        let is_leader_asked = numbers.iter().any(|number| now < table.parts[*number].led_until);
        let rack = if is_leader_asked { "" } else { &limits.rack };
        let in_session = connection.fetch_session.next(version, wanted);
        let sent = connection
            .send(|correlation, client| messages::fetch(version, correlation, client, limits, rack, &in_session));
        // What could not be sent is not answered either: that is where it shows.
        drop(sent);
        for number in numbers {
            table.parts[number].owner = Some(self.number);
        }
        Some(Pending { version, asked })
    }

    /// Let the broker end its session, if it answers at once.
    fn end_session(&mut self) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        if let Some((version, last)) = connection.fetch_session.end() {
            let limits = &self.shared.settings.limits;
            connection.end(|correlation, client| messages::fetch(version, correlation, client, limits, "", &last));
        }
    }

    /// The connection is lost: others may ask for its partitions, once what was decoded of them is handed out.
    fn lose(&mut self, asked: &[Asked]) -> bool {
        self.connection = None;
        for Asked { part, position } in asked {
            if !self.flush(*part, *position) {
                return false;
            }
        }
        let mut table = self.shared.table();
        table.leave_nearer(self.number);
        for Asked { part, .. } in asked {
            table.parts[*part].owner = None;
            table.back_off(*part);
        }
        self.shared.wake();
        true
    }

    /// Let others ask for partitions that this thread has not asked for again.
    fn release(&self, asked: &[Asked]) {
        let pending = self.pending.iter().flat_map(|pending| &pending.asked);
        let pending: HashSet<usize> = pending.map(|one| one.part).collect();
        let mut table = self.shared.table();
        for Asked { part, .. } in asked.iter().filter(|one| !pending.contains(&one.part)) {
            table.parts[*part].owner = None;
        }
    }

    /// Take note of what came of each partition, and return what there is to do.
    fn note<'a>(&self, asked: &[Asked], fetched: Vec<Fetched<'a>>) -> Vec<(Asked, Work<'a>)> {
        let mut table = self.shared.table();
        let mut work = Vec::new();
        let mut is_forbidden = false;
        for (asked, fetched) in of_asked(&table, asked, fetched) {
            let part = &mut table.parts[asked.part];
            if part.state != State::Wanted || part.position != asked.position {
                continue;
            }
            let is_faulty = fetched.error != code::NONE || fetched.diverging.is_some();
            if is_faulty && part.nearer.is_some_and(|(broker, _)| broker == self.number) {
                // A replica may be behind, or away from the leader's log for a moment: the leader knows.
                part.read_leader();
                continue;
            }
            if let Some(end) = fetched.diverging {
                part.state = State::Over;
                work.push((asked, Work::Stop(Trouble::Truncated { end })));
                continue;
            }
            match fetched.error {
                code::NONE => {
                    part.failures = 0;
                    part.log_end = Some(fetched.high_watermark);
                    if let Some(nearer) = fetched.nearer.filter(|nearer| *nearer != self.number) {
                        self.go_nearer(&mut table, asked.part, nearer);
                        continue;
                    }
                    match walk(fetched.records, asked.position, part.end()) {
                        Err(trouble) => {
                            part.state = State::Over;
                            work.push((asked, Work::Stop(trouble)));
                        }
                        Ok((position, epoch)) if position > asked.position => {
                            part.advance(position, epoch);
                            let (reached, is_over) = (part.position.min(part.end()), part.state == State::Over);
                            work.push((asked, Work::Decode { fetched, reached, is_over }));
                        }
                        Ok(_) => {}
                    }
                }
                code::OFFSET_OUT_OF_RANGE => {
                    part.state = State::Over;
                    work.push((asked, Work::Stop(Trouble::OutOfRange)));
                }
                error @ (code::CORRUPT_MESSAGE | code::INVALID_RECORD) => {
                    part.state = State::Over;
                    work.push((asked, Work::Stop(Trouble::Broker { error })));
                }
                error => {
                    is_forbidden |= error == code::TOPIC_AUTHORIZATION_FAILED;
                    self.follow_leader(&mut table, asked.part, fetched.leader);
                }
            }
        }
        drop(table);
        if is_forbidden {
            self.shared.refused("a topic may not be read".to_owned());
        }
        self.shared.wake();
        work
    }

    /// The broker does not lead a partition, or cannot serve it now.
    fn follow_leader(&self, table: &mut Table, part: usize, leader: Option<(i32, i32)>) {
        if let Some((leader, epoch)) = leader
            && epoch > table.parts[part].leader_epoch
            && table.brokers.contains_key(&leader)
        {
            (table.parts[part].leader, table.parts[part].leader_epoch) = (leader, epoch);
            // A thread for it, if there is none.
            table.is_stale = true;
        } else {
            table.back_off(part);
        }
    }

    /// Another broker is to be asked for a partition.
    fn go_nearer(&self, table: &mut Table, part: usize, broker: i32) {
        if supervisor::start(&self.shared, table, broker) {
            table.parts[part].read_nearer(broker);
        } else {
            table.parts[part].read_leader();
            table.is_stale = true;
        }
    }

    /// Hand out what is collected of a partition; false: nobody listens.
    fn flush(&self, part: usize, end: i64) -> bool {
        let filler = self.shared.table().parts[part].filler.clone();
        let mut filler = locked(&filler);
        put(&self.shared, part, &mut filler, end)
    }

    /// Decode what came of a partition, and hand it out once it is enough; false: nobody listens.
    fn decode(&mut self, asked: Asked, fetched: Fetched, reached: i64, is_over: bool, collected_max: usize) -> bool {
        let (filler, ranges) = {
            let table = self.shared.table();
            (table.parts[asked.part].filler.clone(), table.parts[asked.part].ranges.clone())
        };
        let mut filler = locked(&filler);
        let limits = &self.shared.settings.limits;
        let log_end = if limits.committed { fetched.stable_end } else { fetched.high_watermark };
        let mut transactions = Transactions::new(fetched.aborted, limits.committed);
        let rows_max = self.shared.settings.rows_max;
        let (shared, codecs) = (self.shared.clone(), &mut self.codecs);
        let wanted = left_of(&ranges, asked.position);
        let mut is_heard = true;
        let mut rest = fetched.records;
        while let Ok(Some((batch, behind))) = Batch::split(rest) {
            rest = behind;
            if batch.first >= wanted.last().map_or(0, |range| range.1) {
                break;
            }
            let next = wanted.partition_point(|range| range.1 <= batch.first);
            let is_wanted = batch.last >= asked.position && wanted.get(next).is_some_and(|range| range.0 <= batch.last);
            let mut rows = filler.rows();
            let filled = if batch.is_control() || is_wanted { batch.check() } else { Ok(()) };
            let filled = filled.and_then(|()| {
                if transactions.are_visible(&batch) && is_wanted {
                    batch.fill(&wanted[next..], codecs, &mut filler, rows_max, &mut |filler| {
                        rows = 0;
                        let end = filler.end().unwrap_or(asked.position);
                        is_heard = is_heard && put(&shared, asked.part, filler, end);
                    })
                } else {
                    Ok(())
                }
            });
            if let Err(fault) = filled {
                filler.truncate(rows);
                let (first, end) = (batch.first, batch.last + 1);
                return put(&shared, asked.part, &mut filler, first.max(asked.position))
                    && shared.stop_part(asked.part, Trouble::Batch { first, end, fault });
            }
        }
        // What is collected counts for the memory of what waits.
        let collected_max = collected_max.clamp(COLLECTED_BYTES_MIN, crate::columns::BATCH_BYTES / 2);
        let is_enough = filler.rows() >= rows_max / 2 || filler.bytes() >= collected_max;
        // A reader that waits gets what there is.
        if is_over || is_enough || reached >= log_end || shared.queue.is_empty() {
            is_heard = is_heard && put_with_position(&shared, asked.part, &mut filler, reached);
        }
        is_heard
    }
}

/// Return what came of partitions that were asked for; those without news are not among it.
fn of_asked<'a>(table: &Table, asked: &[Asked], fetched: Vec<Fetched<'a>>) -> Vec<(Asked, Fetched<'a>)> {
    let Some(first) = fetched.first() else {
        return Vec::new();
    };
    // A response has names of topics, or their ids.
    let has_ids = first.topic.is_empty();
    let key = |one: &Asked| {
        let part = &table.parts[one.part];
        if has_ids { ("", part.id, part.partition) } else { (part.topic.as_str(), NO_ID, part.partition) }
    };
    let by_key: HashMap<(&str, Id, i32), Asked> = asked.iter().map(|one| (key(one), *one)).collect();
    let found = |one: &Fetched| by_key.get(&(one.topic, one.id, one.partition)).copied();
    fetched.into_iter().filter_map(|one| Some((found(&one)?, one))).collect()
}

/// Return how far whole batches reach, and the epoch of the last one.
fn walk(mut records: &[u8], position: i64, end: i64) -> Result<(i64, i32), Trouble> {
    let (mut next, mut epoch) = (position, -1);
    loop {
        match Batch::split(records) {
            Ok(Some((batch, rest))) => {
                if batch.last >= next {
                    (next, epoch) = (batch.last + 1, batch.epoch);
                }
                if next >= end {
                    return Ok((next, epoch));
                }
                records = rest;
            }
            Ok(None) => return Ok((next, epoch)),
            // What is before it is read first.
            Err(_) if next > position => return Ok((next, epoch)),
            Err(fault) => {
                return Err(Trouble::Batch { first: position, end: position, fault });
            }
        }
    }
}

/// Return the wanted ranges from a position on.
fn left_of(ranges: &[(i64, i64)], position: i64) -> Vec<(i64, i64)> {
    let next = ranges.partition_point(|range| range.1 <= position);
    ranges[next..].iter().map(|(start, end)| (*start.max(&position), *end)).collect()
}

/// Hand out what is collected; false: nobody listens.
fn put(shared: &Shared, part: usize, filler: &mut Filler, end: i64) -> bool {
    let bytes = filler.bytes();
    if bytes >= COLLECTED_BYTES_MIN {
        crate::take_back_memory();
    }
    filler.finish().is_none_or(|records| shared.queue.put(Item::Records { part, records, end }, bytes))
}

fn put_with_position(shared: &Shared, part: usize, filler: &mut Filler, end: i64) -> bool {
    if filler.rows() > 0 {
        return put(shared, part, filler, end);
    }
    shared.queue.put(Item::Moved { part, end }, 0)
}

#[cfg(test)]
#[path = "broker_tests.rs"]
mod tests;
