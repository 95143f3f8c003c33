//! The thread that knows the leaders of partitions, and starts a thread for each of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::broker;
use crate::connection::{Connection, Failure};
use crate::messages::{self, Metadata, Topic};
use crate::partitions::{Shared, State, Table, pause};
use crate::queue::Trouble;
use crate::wire::NO_ID;

/// Leaders are not looked for more often.
const EVERY: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(1);
/// An address that does not answer must not hold up the others for longer.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Look for leaders until the reader is stopped.
pub fn supervise(shared: Arc<Shared>) {
    let mut turn = 0;
    let mut failures = 0;
    let mut looked_at: Option<Instant> = None;
    while !shared.is_stopped() {
        let table = shared.table();
        if !table.is_stale || table.wanted().next().is_none() {
            shared.wait(table, IDLE);
            continue;
        }
        drop(table);
        let since = looked_at.map_or(EVERY, |at| at.elapsed());
        shared.sleep(EVERY.max(pause(failures)).saturating_sub(since));
        looked_at = Some(Instant::now());
        shared.table().is_stale = false;
        let outcome = look(&shared, turn).map(|metadata| take(&shared, metadata));
        match outcome {
            Ok(is_whole) => {
                failures = if is_whole { 0 } else { failures + 1 };
                // Another broker may know more.
                turn += usize::from(!is_whole);
            }
            Err(failure) => {
                (turn, failures) = (turn + 1, failures + 1);
                shared.table().is_stale = true;
                shared.not_connected(failure);
            }
        }
    }
    shared.table().threads -= 1;
    shared.wake();
}

/// Ask one broker for the topics that are read.
fn look(shared: &Shared, turn: usize) -> Result<Metadata, Failure> {
    let (topics, mut addresses): (BTreeSet<String>, Vec<(String, u16)>) = {
        let table = shared.table();
        (table.wanted().map(|part| part.topic.clone()).collect(), table.brokers.values().cloned().collect())
    };
    addresses.sort();
    addresses.splice(0..0, shared.settings.brokers.iter().cloned());
    let (host, port) = &addresses[turn % addresses.len()];
    let mut connecting = shared.settings.connecting.clone();
    connecting.timeout = connecting.timeout.min(CONNECT_MAX);
    let mut connection = Connection::open(&connecting, host, *port, &shared.stop)?;
    let versions = connection.versions;
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let request = |correlation, client: &str| messages::metadata(versions, correlation, client, &names);
    connection.ask(request, connecting.timeout, &shared.stop)?;
    let read = messages::read_metadata(versions, &connection.response);
    read.map_err(|why| Failure::Io(std::io::Error::other(why)))
}

/// Take note of leaders, and start their threads; return whether all partitions have one.
fn take(shared: &Arc<Shared>, metadata: Metadata) -> bool {
    let mut table = shared.table();
    for one in metadata.brokers {
        table.brokers.insert(one.number, (one.host, one.port));
    }
    let mut recreated = Vec::new();
    let mut refusal = None;
    for topic in &metadata.topics {
        if topic.error != 0 {
            refusal = Some(format!("the broker's error {} for topic {}", topic.error, topic.name));
            continue;
        }
        for number in 0..table.parts.len() {
            let part = &mut table.parts[number];
            if part.topic != topic.name || part.state != State::Wanted {
                continue;
            }
            if part.id != NO_ID && topic.id != NO_ID && part.id != topic.id {
                recreated.push((number, Trouble::Recreated { known: part.id, found: topic.id }));
                continue;
            }
            follow(part, topic);
        }
    }
    let has_leader = |number: i32| table.brokers.contains_key(&number);
    let is_whole = refusal.is_none() && table.wanted().all(|part| has_leader(part.leader));
    let leaders: BTreeSet<i32> = table.wanted().map(|part| part.leader).filter(|leader| has_leader(*leader)).collect();
    for leader in leaders {
        start(shared, &mut table, leader);
    }
    table.is_stale |= !is_whole;
    drop(table);
    shared.wake();
    for (part, trouble) in recreated {
        shared.stop_part(part, trouble);
    }
    if let Some(why) = refusal {
        shared.refused(why);
    }
    is_whole
}

/// Start a broker's thread, if there is none; false: there cannot be one.
pub fn start(shared: &Arc<Shared>, table: &mut Table, broker: i32) -> bool {
    if !table.brokers.contains_key(&broker) {
        return false;
    }
    if !table.served.insert(broker) {
        return true;
    }
    let theirs = shared.clone();
    let started = Builder::new().name(format!("kafka-read-{broker}")).spawn(move || broker::serve(theirs, broker));
    if started.is_err() {
        table.served.remove(&broker);
        return false;
    }
    table.threads += 1;
    true
}

fn follow(part: &mut crate::partitions::Part, topic: &Topic) {
    let Some(leader) = topic.leaders.iter().find(|leader| leader.partition == part.partition) else {
        return;
    };
    // An older epoch is what a broker says that was away.
    if leader.broker < 0 || leader.epoch < part.leader_epoch {
        return;
    }
    part.id = topic.id;
    if leader.epoch > part.leader_epoch || leader.broker != part.leader {
        part.not_before = Instant::now();
        part.nearer = None;
    }
    (part.leader, part.leader_epoch) = (leader.broker, leader.epoch);
}
