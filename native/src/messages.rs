//! The requests that a reader needs, and their responses: ApiVersions, Metadata, Fetch, and those of SASL.

use crate::wire::{Id, NO_ID, Read, Reader, Writer};

const FETCH: i16 = 1;
const METADATA: i16 = 3;
const SASL_HANDSHAKE: i16 = 17;
const API_VERSIONS: i16 = 18;
const SASL_AUTHENTICATE: i16 = 36;

/// The oldest versions that are read, those of Kafka 2.8, and the newest.
const FETCH_VERSIONS: (i16, i16) = (12, 16);
const METADATA_VERSIONS: (i16, i16) = (10, 12);
/// From this version on, Fetch names topics by id.
const FETCH_BY_ID: i16 = 13;
/// From this version on, a consumer does not send a replica's id, and is told of new leaders' addresses.
const FETCH_WITHOUT_REPLICA: i16 = 15;

/// The versions that a broker and this client both know.
#[derive(Clone, Copy, Debug)]
pub struct Versions {
    pub fetch: i16,
    pub metadata: i16,
}

pub fn api_versions(correlation: i32, client: &str) -> Vec<u8> {
    let mut writer = Writer::request(API_VERSIONS, 3, correlation, client);
    writer.text("kafka-ordered-ops-native");
    writer.text(env!("CARGO_PKG_VERSION"));
    writer.tags();
    writer.framed()
}

/// None: the broker is too old.
pub fn read_api_versions(response: &[u8]) -> Read<Option<Versions>> {
    let mut reader = Reader(response);
    // Its header never has tags.
    reader.i32()?;
    if reader.i16()? != 0 {
        return Ok(None);
    }
    let mut versions = Versions { fetch: 0, metadata: 0 };
    reader.each(|reader| {
        let (key, least, most) = (reader.i16()?, reader.i16()?, reader.i16()?);
        let chosen = |(ours_least, ours_most): (i16, i16)| {
            let version = most.min(ours_most);
            if version >= ours_least.max(least) { version } else { 0 }
        };
        match key {
            FETCH => versions.fetch = chosen(FETCH_VERSIONS),
            METADATA => versions.metadata = chosen(METADATA_VERSIONS),
            _ => {}
        }
        reader.tags()
    })?;
    Ok((versions.fetch > 0 && versions.metadata > 0).then_some(versions))
}

pub fn sasl_handshake(correlation: i32, client: &str, mechanism: &str) -> Vec<u8> {
    let mut writer = Writer::request_without_tags(SASL_HANDSHAKE, 1, correlation, client);
    writer.i16(mechanism.len() as i16);
    writer.0.extend(mechanism.as_bytes());
    writer.framed()
}

/// Return the error code.
pub fn read_sasl_handshake(response: &[u8]) -> Read<i16> {
    let mut reader = Reader(response);
    reader.i32()?;
    reader.i16()
}

pub fn sasl_authenticate(correlation: i32, client: &str, message: &[u8]) -> Vec<u8> {
    let mut writer = Writer::request(SASL_AUTHENTICATE, 2, correlation, client);
    writer.bytes(message);
    writer.tags();
    writer.framed()
}

/// Return the error code, the server's message, and when the session ends, ms (0: never).
pub fn read_sasl_authenticate(response: &[u8]) -> Read<(i16, &[u8], i64)> {
    let mut reader = Reader(response);
    reader.i32()?;
    reader.tags()?;
    let error = reader.i16()?;
    reader.bytes()?;
    let message = reader.bytes()?.unwrap_or_default();
    Ok((error, message, reader.i64()?))
}

pub fn metadata(versions: Versions, correlation: i32, client: &str, topics: &[&str]) -> Vec<u8> {
    let version = versions.metadata;
    let mut writer = Writer::request(METADATA, version, correlation, client);
    writer.count(topics.len());
    for topic in topics {
        writer.0.extend(NO_ID);
        writer.text(topic);
        writer.tags();
    }
    // Asking about a topic must not create it.
    writer.i8(0);
    if version <= 10 {
        writer.i8(0);
    }
    writer.i8(0);
    writer.tags();
    writer.framed()
}

pub struct Broker {
    pub number: i32,
    pub host: String,
    pub port: u16,
}

pub struct Leader {
    pub partition: i32,
    pub broker: i32,
    pub epoch: i32,
}

pub struct Topic {
    pub name: String,
    pub error: i16,
    pub id: Id,
    pub leaders: Vec<Leader>,
}

#[derive(Default)]
pub struct Metadata {
    pub brokers: Vec<Broker>,
    pub topics: Vec<Topic>,
}

pub fn read_metadata(versions: Versions, response: &[u8]) -> Read<Metadata> {
    let mut reader = Reader(response);
    reader.i32()?;
    reader.tags()?;
    // Throttled for.
    reader.i32()?;
    let mut metadata = Metadata::default();
    reader.each(|reader| {
        let number = reader.i32()?;
        let host = reader.text()?.ok_or("a broker without a host")?.to_owned();
        let port = u16::try_from(reader.i32()?).map_err(|_| "a broker's port")?;
        // Its rack.
        reader.bytes()?;
        metadata.brokers.push(Broker { number, host, port });
        reader.tags()
    })?;
    // The cluster's id and its controller.
    reader.bytes()?;
    reader.i32()?;
    reader.each(|reader| {
        let error = reader.i16()?;
        let name = reader.text()?.unwrap_or_default().to_owned();
        let id = reader.id()?;
        reader.i8()?;
        let mut leaders = Vec::new();
        reader.each(|reader| {
            // A partition's error shows at its leader.
            reader.i16()?;
            let partition = reader.i32()?;
            let broker = reader.i32()?;
            leaders.push(Leader { partition, broker, epoch: reader.i32()? });
            for _replicas in 0..3 {
                reader.each(|reader| reader.i32().map(|_| ()))?;
            }
            reader.tags()
        })?;
        // Operations that are allowed.
        reader.i32()?;
        metadata.topics.push(Topic { name, error, id, leaders });
        reader.tags()
    })?;
    if versions.metadata <= 10 {
        reader.i32()?;
    }
    reader.tags()?;
    Ok(metadata)
}

/// What is wanted of one partition.
pub struct Wanted<'a> {
    pub topic: &'a str,
    pub id: Id,
    pub partition: i32,
    pub leader_epoch: i32,
    pub offset: i64,
    /// Of the record before the offset; -1: not known.
    pub last_epoch: i32,
}

/// What a request names in its session.
pub struct InSession<'a> {
    pub id: i32,
    pub epoch: i32,
    pub wanted: Vec<Wanted<'a>>,
    /// Names and ids of topics, and partitions, that are to be fetched no more.
    pub forgotten: Vec<(String, Id, i32)>,
}

#[derive(Clone)]
pub struct FetchLimits {
    pub wait_ms: i32,
    pub min_bytes: i32,
    pub max_bytes: i32,
    pub partition_bytes: i32,
    pub committed: bool,
    /// Where this client is, by which a leader knows nearer replicas (KIP-392); empty: it is not to look for one.
    pub rack: String,
}

/// Return the version of a fetch: topics without an id are named.
pub fn fetch_version(versions: Versions, wanted: &[(usize, Wanted)]) -> i16 {
    if wanted.iter().any(|(_, wanted)| wanted.id == NO_ID) {
        versions.fetch.min(FETCH_BY_ID - 1)
    } else {
        versions.fetch
    }
}

/// `rack` is that of the limits, or empty where leaders themselves are to answer.
pub fn fetch(
    version: i16,
    correlation: i32,
    client: &str,
    limits: &FetchLimits,
    rack: &str,
    session: &InSession,
) -> Vec<u8> {
    let mut writer = Writer::request(FETCH, version, correlation, client);
    if version < FETCH_WITHOUT_REPLICA {
        writer.i32(-1);
    }
    writer.i32(limits.wait_ms);
    writer.i32(limits.min_bytes);
    writer.i32(limits.max_bytes);
    writer.i8(i8::from(limits.committed));
    writer.i32(session.id);
    writer.i32(session.epoch);
    let topic = |writer: &mut Writer, name: &str, id: &Id| {
        if version >= FETCH_BY_ID {
            writer.0.extend(id);
        } else {
            writer.text(name);
        }
    };
    // One entry for each partition keeps their order, in which the broker serves them.
    writer.count(session.wanted.len());
    for wanted in &session.wanted {
        topic(&mut writer, wanted.topic, &wanted.id);
        writer.count(1);
        writer.i32(wanted.partition);
        writer.i32(wanted.leader_epoch);
        writer.i64(wanted.offset);
        writer.i32(wanted.last_epoch);
        writer.i64(-1);
        writer.i32(limits.partition_bytes);
        writer.tags();
        writer.tags();
    }
    writer.count(session.forgotten.len());
    for (name, id, partition) in &session.forgotten {
        topic(&mut writer, name, id);
        writer.count(1);
        writer.i32(*partition);
        writer.tags();
    }
    writer.text(rack);
    writer.tags();
    writer.framed()
}

/// An aborted transaction whose records are among those that were fetched.
#[derive(Clone, Copy, Debug)]
pub struct Aborted {
    pub producer: i64,
    pub first_offset: i64,
}

/// What came of one partition.
pub struct Fetched<'a> {
    /// Empty where the topic is named by its id.
    pub topic: &'a str,
    pub id: Id,
    pub partition: i32,
    pub error: i16,
    pub high_watermark: i64,
    pub stable_end: i64,
    pub log_start: i64,
    pub aborted: Vec<Aborted>,
    pub records: &'a [u8],
    /// The log is another one from this offset on.
    pub diverging: Option<i64>,
    /// The broker with a nearer replica, which is to be asked instead.
    pub nearer: Option<i32>,
    /// The new leader and its epoch.
    pub leader: Option<(i32, i32)>,
}

pub struct FetchResponse<'a> {
    pub throttled_ms: i32,
    /// Of the whole request.
    pub error: i16,
    /// The number of the session; 0: there is none.
    pub session: i32,
    pub partitions: Vec<Fetched<'a>>,
}

pub fn read_fetch(version: i16, response: &[u8]) -> Read<FetchResponse<'_>> {
    let mut reader = Reader(response);
    reader.i32()?;
    reader.tags()?;
    let throttled_ms = reader.i32()?;
    let (error, session) = (reader.i16()?, reader.i32()?);
    let mut partitions = Vec::new();
    reader.each(|reader| {
        let (mut topic, mut id) = ("", NO_ID);
        if version >= FETCH_BY_ID {
            id = reader.id()?;
        } else {
            topic = reader.text()?.unwrap_or_default();
        }
        reader.each(|reader| {
            partitions.push(read_partition(reader, topic, id)?);
            Ok(())
        })?;
        reader.tags()
    })?;
    reader.tags()?;
    Ok(FetchResponse { throttled_ms, error, session, partitions })
}

fn read_partition<'a>(reader: &mut Reader<'a>, topic: &'a str, id: Id) -> Read<Fetched<'a>> {
    let partition = reader.i32()?;
    let error = reader.i16()?;
    let (high_watermark, stable_end, log_start) = (reader.i64()?, reader.i64()?, reader.i64()?);
    let mut aborted = Vec::new();
    reader.each(|reader| {
        aborted.push(Aborted { producer: reader.i64()?, first_offset: reader.i64()? });
        reader.tags()
    })?;
    let nearer = Some(reader.i32()?).filter(|broker| *broker >= 0);
    let records = reader.bytes()?.unwrap_or_default();
    let (mut diverging, mut leader) = (None, None);
    reader.tags_by(|number, mut tag| {
        match number {
            0 => {
                tag.i32()?;
                diverging = Some(tag.i64()?);
            }
            1 => leader = Some((tag.i32()?, tag.i32()?)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(Fetched {
        topic,
        id,
        partition,
        error,
        high_watermark,
        stable_end,
        log_start,
        aborted,
        records,
        diverging,
        nearer,
        leader,
    })
}
