//! A fetch session (KIP-227): a broker remembers the partitions of a connection, requests name those that have changed,
//! and responses those with news.

use std::collections::{HashMap, HashSet};

use crate::messages::{InSession, Wanted};
use crate::wire::Id;

/// The epoch of a request that begins a session, and of one that ends it.
const FIRST: i32 = 0;
const FINAL: i32 = -1;

/// A broker's error code.
const SESSION_NOT_FOUND: i16 = 70;

/// What the broker knows of a partition.
#[derive(PartialEq)]
struct Known {
    topic: String,
    id: Id,
    partition: i32,
    leader_epoch: i32,
    offset: i64,
    last_epoch: i32,
}

impl Known {
    fn is_of(&self, wanted: &Wanted) -> bool {
        self.partition == wanted.partition
            && self.offset == wanted.offset
            && self.leader_epoch == wanted.leader_epoch
            && self.last_epoch == wanted.last_epoch
            && self.id == wanted.id
    }
}

/// The session of a connection.
#[derive(Default)]
pub struct Session {
    /// 0: the broker keeps none, and each request names all partitions.
    id: i32,
    /// Of the next request.
    epoch: i32,
    /// Topics have ids in a session, or names: not both.
    version: i16,
    /// By the numbers of partitions, as far as the broker knows them.
    known: HashMap<usize, Known>,
}

/// How a response leaves the session.
#[derive(Debug, PartialEq, Eq)]
pub enum After {
    /// It may be read.
    Good,
    /// The broker does not know the session any more: the next request begins another one.
    Anew,
    /// Also a request that begins a session fails.
    Failed,
}

impl Session {
    /// Return what a request has to name, so that all of these partitions are fetched, and no others.
    pub fn next<'a>(&mut self, version: i16, wanted: Vec<(usize, Wanted<'a>)>) -> InSession<'a> {
        if self.id == 0 || self.version != version {
            self.begin();
            self.version = version;
        }
        let numbers: HashSet<usize> = wanted.iter().map(|(number, _)| *number).collect();
        let gone: Vec<usize> = self.known.keys().filter(|number| !numbers.contains(number)).copied().collect();
        let gone: Vec<Known> = gone.iter().filter_map(|number| self.known.remove(number)).collect();
        let mut changed = Vec::new();
        for (number, wanted) in wanted {
            if self.known.get(&number).is_some_and(|known| known.is_of(&wanted)) {
                continue;
            }
            let known = Known {
                topic: wanted.topic.to_owned(),
                id: wanted.id,
                partition: wanted.partition,
                leader_epoch: wanted.leader_epoch,
                offset: wanted.offset,
                last_epoch: wanted.last_epoch,
            };
            self.known.insert(number, known);
            changed.push(wanted);
        }
        // A partition that was stopped and taken up again has another number: to forget it would end both.
        let is_back = |gone: &Known| {
            let is_it = |wanted: &Wanted| {
                (gone.topic.as_str(), gone.id, gone.partition) == (wanted.topic, wanted.id, wanted.partition)
            };
            changed.iter().any(is_it)
        };
        let forgotten = gone.into_iter().filter(|gone| !is_back(gone));
        let forgotten = forgotten.map(|gone| (gone.topic, gone.id, gone.partition)).collect();
        InSession { id: self.id, epoch: self.epoch, wanted: changed, forgotten }
    }

    /// Let the next request begin a session: with the number of the previous one, which the broker then ends.
    fn begin(&mut self) {
        self.epoch = FIRST;
        self.known.clear();
    }

    /// Take note of a response with this error of the whole request, and with this session.
    pub fn answered(&mut self, error: i16, id: i32) -> After {
        let is_first = self.epoch == FIRST;
        if error != 0 || (!is_first && id != self.id) {
            self.begin();
            if error == SESSION_NOT_FOUND {
                self.id = 0;
            }
            return if is_first { After::Failed } else { After::Anew };
        }
        self.id = id.max(0);
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        After::Good
    }

    /// Return the request that ends the session, with its version; None: there is none.
    pub fn end(&mut self) -> Option<(i16, InSession<'static>)> {
        let ended = std::mem::take(self);
        let request = InSession { id: ended.id, epoch: FINAL, wanted: Vec::new(), forgotten: Vec::new() };
        (ended.id != 0).then_some((ended.version, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: i16 = 13;
    const NUMBER: i32 = 77;

    fn wanted(partition: i32, offset: i64) -> (usize, Wanted<'static>) {
        numbered(partition as usize, partition, offset)
    }

    fn numbered(number: usize, partition: i32, offset: i64) -> (usize, Wanted<'static>) {
        (number, Wanted { topic: "orders", id: [1; 16], partition, leader_epoch: 3, offset, last_epoch: -1 })
    }

    /// Number and epoch of the session, the partitions that are named, and those that are forgotten.
    fn said(request: &InSession) -> (i32, i32, Vec<i32>, Vec<i32>) {
        let named = request.wanted.iter().map(|wanted| wanted.partition).collect();
        let mut forgotten: Vec<i32> = request.forgotten.iter().map(|(_, _, partition)| *partition).collect();
        forgotten.sort();
        (request.id, request.epoch, named, forgotten)
    }

    fn begun() -> Session {
        let mut session = Session::default();
        let first = session.next(VERSION, vec![wanted(0, 5), wanted(1, 5), wanted(2, 5)]);
        assert_eq!(said(&first), (0, 0, vec![0, 1, 2], vec![]));
        assert_eq!(session.answered(0, NUMBER), After::Good);
        session
    }

    #[test]
    fn only_what_has_changed_is_named() {
        let mut session = begun();
        let second = session.next(VERSION, vec![wanted(2, 5), wanted(0, 6), wanted(3, 0)]);
        assert_eq!(said(&second), (NUMBER, 1, vec![0, 3], vec![1]));
        assert_eq!(session.answered(0, NUMBER), After::Good);
        let third = session.next(VERSION, vec![wanted(0, 6), wanted(1, 5), wanted(2, 5), wanted(3, 0)]);
        assert_eq!(said(&third), (NUMBER, 2, vec![1], vec![]));
    }

    #[test]
    fn a_partition_that_is_taken_up_again_is_not_forgotten() {
        let mut session = begun();
        let second = session.next(VERSION, vec![wanted(0, 5), numbered(9, 2, 1)]);
        assert_eq!(said(&second), (NUMBER, 1, vec![2], vec![1]));
        assert_eq!(session.answered(0, NUMBER), After::Good);
        let third = session.next(VERSION, vec![wanted(0, 5)]);
        assert_eq!(said(&third), (NUMBER, 2, vec![], vec![2]));
    }

    #[test]
    fn a_session_that_the_broker_does_not_know_begins_anew() {
        for (error, id) in [(SESSION_NOT_FOUND, 0), (71, 0), (103, 0), (106, 0), (0, NUMBER + 1)] {
            let ended = if error == SESSION_NOT_FOUND { 0 } else { NUMBER };
            let mut session = begun();
            session.next(VERSION, vec![wanted(0, 6)]);
            assert_eq!(session.answered(error, id), After::Anew);
            let next = session.next(VERSION, vec![wanted(0, 6), wanted(1, 5)]);
            assert_eq!(said(&next), (ended, 0, vec![0, 1], vec![]));
            assert_eq!(session.answered(error.max(1), 0), After::Failed);
        }
    }

    #[test]
    fn without_a_session_each_request_names_all() {
        let mut session = Session::default();
        for _ in 0..3 {
            let request = session.next(VERSION, vec![wanted(0, 5), wanted(1, 5)]);
            assert_eq!(said(&request), (0, 0, vec![0, 1], vec![]));
            assert_eq!(session.answered(0, 0), After::Good);
        }
        assert!(session.end().is_none());
    }

    #[test]
    fn names_and_ids_of_topics_are_not_mixed() {
        let mut session = begun();
        let next = session.next(VERSION - 1, vec![wanted(0, 5)]);
        assert_eq!(said(&next), (NUMBER, 0, vec![0], vec![]));
        assert_eq!(session.answered(0, NUMBER + 1), After::Good);
        let next = session.next(VERSION - 1, vec![wanted(0, 5)]);
        assert_eq!(said(&next), (NUMBER + 1, 1, vec![], vec![]));
    }

    #[test]
    fn a_session_is_ended_once() {
        let mut session = begun();
        let (version, request) = session.end().unwrap();
        assert_eq!((version, said(&request)), (VERSION, (NUMBER, -1, vec![], vec![])));
        assert!(session.end().is_none());
    }
}
