//! Which broker is read next, after each kind of response.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::columns::{Column, Projection};
use crate::connection::Connecting;
use crate::messages::FetchLimits;
use crate::partitions::Settings;
use crate::security::Security;
use crate::wire::NO_ID;

const LEADER: i32 = 1;
const NEARER: i32 = 2;
const UNKNOWN: i32 = 3;
const POSITION: i64 = 40;

/// One partition, led by `LEADER`; nobody listens at the brokers' addresses.
fn shared() -> Arc<Shared> {
    let connecting =
        Connecting { client: "test".to_owned(), timeout: Duration::from_millis(100), security: Security::default() };
    let limits = FetchLimits {
        wait_ms: 10,
        min_bytes: 1,
        max_bytes: 1_000,
        partition_bytes: 1_000,
        committed: true,
        rack: "here".to_owned(),
    };
    let shared = Arc::new(Shared::new(Settings {
        brokers: vec![("127.0.0.1".to_owned(), 1)],
        connecting,
        limits,
        projection: Projection::new(vec![Column::Offset]),
        rows_max: 10,
        queued_bytes_max: 1_000,
        zstd_bytes_max: 1_000,
    }));
    shared.add("orders", 0, vec![(POSITION, 50)], None);
    let mut table = shared.table();
    table.parts[0].leader = LEADER;
    for broker in [LEADER, NEARER] {
        table.brokers.insert(broker, ("127.0.0.1".to_owned(), 1));
        // No thread is started, which would find nobody there.
        table.served.insert(broker);
    }
    drop(table);
    shared
}

fn fetched(error: i16, nearer: Option<i32>, diverging: Option<i64>) -> Fetched<'static> {
    Fetched {
        topic: "orders",
        id: NO_ID,
        partition: 0,
        error,
        high_watermark: 100,
        stable_end: 100,
        log_start: 0,
        aborted: Vec::new(),
        records: &[],
        diverging,
        nearer,
        leader: None,
    }
}

/// Let a broker answer; return which broker is read next, and whether the partition is still read.
fn answered(shared: &Arc<Shared>, by: i32, fetched: Fetched) -> (i32, bool) {
    let broker = Broker {
        shared: shared.clone(),
        number: by,
        connection: None,
        codecs: Codecs::new(1_000),
        turn: 0,
        failures: 0,
        pending: None,
    };
    let work = broker.note(&[Asked { part: 0, position: POSITION }], vec![fetched]);
    let is_stopped = work.iter().any(|(_, work)| matches!(work, Work::Stop(_)));
    let table = shared.table();
    let part = &table.parts[0];
    assert_eq!(is_stopped, part.state == State::Over);
    (part.source(Instant::now()), part.state == State::Wanted)
}

#[test]
fn a_nearer_replica_is_read_until_it_fails() {
    for (error, diverging) in
        [(code::OFFSET_OUT_OF_RANGE, None), (code::CORRUPT_MESSAGE, None), (6, None), (0, Some(5))]
    {
        let shared = shared();
        assert_eq!(answered(&shared, LEADER, fetched(0, Some(NEARER), None)), (NEARER, true));
        assert_eq!(answered(&shared, NEARER, fetched(0, None, None)), (NEARER, true));
        assert_eq!(answered(&shared, NEARER, fetched(error, None, diverging)), (LEADER, true));
        assert!(shared.table().parts[0].led_until > Instant::now());
        shared.stop.store(true, Relaxed);
    }
}

#[test]
fn a_near_broker_that_is_lost_is_left() {
    let shared = shared();
    assert_eq!(answered(&shared, LEADER, fetched(0, Some(NEARER), None)), (NEARER, true));
    shared.table().leave_nearer(UNKNOWN);
    assert_eq!(shared.table().parts[0].source(Instant::now()), NEARER);
    shared.table().leave_nearer(NEARER);
    assert_eq!(shared.table().parts[0].source(Instant::now()), LEADER);
    shared.stop.store(true, Relaxed);
}

#[test]
fn a_near_broker_without_an_address_is_not_waited_for() {
    let shared = shared();
    assert_eq!(answered(&shared, LEADER, fetched(0, Some(UNKNOWN), None)), (LEADER, true));
    assert!(shared.table().is_stale);
    assert!(shared.table().parts[0].led_until > Instant::now());
}

#[test]
fn the_leader_itself_is_believed() {
    for (error, diverging) in [(code::OFFSET_OUT_OF_RANGE, None), (code::CORRUPT_MESSAGE, None), (0, Some(5))] {
        assert_eq!(answered(&shared(), LEADER, fetched(error, None, diverging)), (LEADER, false));
    }
}

#[test]
fn an_epoch_that_is_refused_is_looked_up() {
    // Fenced, unknown, and unknown to the topic's id.
    for error in [74, 75, 100] {
        let shared = shared();
        shared.table().is_stale = false;
        assert_eq!(answered(&shared, LEADER, fetched(error, None, None)), (LEADER, true));
        let table = shared.table();
        assert!(table.is_stale);
        assert!(table.parts[0].not_before > Instant::now());
        assert_eq!(table.parts[0].position, POSITION);
    }
}
