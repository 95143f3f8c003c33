//! A connection to one broker.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::messages::{self, Versions};
use crate::security::{Credentials, Security, Stream, authenticate};
use crate::sessions::Session;

/// How late a stop is felt, and while bytes come, after how many of them.
pub const SLICE: Duration = Duration::from_millis(50);
const SLICE_BYTES: usize = 256 << 10;
/// So long a broker may take to end a fetch session.
const END_WAIT: Duration = Duration::from_millis(90);
/// More than any response: brokers refuse records of 2 GiB.
const RESPONSE_BYTES_MAX: usize = 1 << 30;
/// So much is asked for before the first byte of a response has come: its size may be damaged.
const RESERVED_BYTES_MAX: usize = 4 << 20;
/// Brokers refuse to renew a session sooner.
const RENEWED_AFTER_MIN: Duration = Duration::from_millis(1_050);
/// Broker error codes of authentication.
const UNSUPPORTED_MECHANISM: i16 = 33;

/// Why there is no connection.
#[derive(Debug)]
pub enum Failure {
    /// It may work again.
    Io(io::Error),
    /// The broker refuses the credentials, or its certificate is not trusted.
    Refused(String),
    /// The broker does not know the versions that this client needs.
    TooOld,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::InvalidData => Failure::Refused(error.to_string()),
            _ => Failure::Io(error),
        }
    }
}

/// How to connect.
#[derive(Clone)]
pub struct Connecting {
    pub client: String,
    /// Of each request.
    pub timeout: Duration,
    pub security: Security,
}

pub struct Connection {
    stream: Stream,
    client: String,
    correlation: i32,
    /// When the session is to be renewed, which the broker ends else (KIP-368).
    renewed_at: Option<Instant>,
    pub versions: Versions,
    pub fetch_session: Session,
    /// Bytes of the last response that have not come yet.
    unread: usize,
    /// The last response, without its size. Its memory serves the next one.
    pub response: Vec<u8>,
}

impl Connection {
    pub fn open(connecting: &Connecting, host: &str, port: u16, stop: &AtomicBool) -> Result<Connection, Failure> {
        if !connecting.security.is_ready() {
            return Err(Failure::Io(io::Error::new(ErrorKind::NotFound, "no valid token")));
        }
        let mut failure = io::Error::new(ErrorKind::NotFound, format!("{host} has no address"));
        for address in (host, port).to_socket_addrs()? {
            if stop.load(Relaxed) {
                return Err(Failure::Io(ErrorKind::Interrupted.into()));
            }
            match TcpStream::connect_timeout(&address, connecting.timeout) {
                Ok(stream) => return Connection::begin(connecting, host, stream, stop),
                Err(error) => failure = error,
            }
        }
        Err(Failure::Io(failure))
    }

    fn begin(connecting: &Connecting, host: &str, stream: TcpStream, stop: &AtomicBool) -> Result<Connection, Failure> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(connecting.timeout))?;
        let mut connection = Connection {
            stream: connecting.security.wrap(host, stream)?,
            client: connecting.client.clone(),
            correlation: 0,
            renewed_at: None,
            versions: Versions { fetch: 0, metadata: 0 },
            fetch_session: Session::default(),
            unread: 0,
            response: Vec::new(),
        };
        connection.ask(messages::api_versions, connecting.timeout, stop)?;
        let versions = messages::read_api_versions(&connection.response).map_err(broken)?;
        connection.versions = versions.ok_or(Failure::TooOld)?;
        if let Some(credentials) = &connecting.security.credentials {
            connection.authenticate(credentials, connecting.timeout, stop)?;
        }
        Ok(connection)
    }

    /// Authenticate again before the broker ends the session; without a request under way.
    pub fn renew(&mut self, connecting: &Connecting, stop: &AtomicBool) -> Result<(), Failure> {
        if self.renewed_at.is_some_and(|at| at <= Instant::now())
            && let Some(credentials) = &connecting.security.credentials
            && connecting.security.is_ready()
        {
            self.authenticate(credentials, connecting.timeout, stop)?;
        }
        Ok(())
    }

    fn authenticate(&mut self, credentials: &Credentials, timeout: Duration, stop: &AtomicBool) -> Result<(), Failure> {
        let name = credentials.mechanism();
        self.ask(|correlation, client| messages::sasl_handshake(correlation, client, name), timeout, stop)?;
        match messages::read_sasl_handshake(&self.response).map_err(broken)? {
            0 => {}
            UNSUPPORTED_MECHANISM => return Err(Failure::Refused(format!("the broker does not know {name}"))),
            error => return Err(Failure::Refused(format!("the broker's error {error} to {name}"))),
        }
        let began = Instant::now();
        let mut lifetime_ms = 0;
        authenticate(credentials, &mut |message| {
            self.ask(|correlation, client| messages::sasl_authenticate(correlation, client, message), timeout, stop)?;
            let answer;
            (answer, lifetime_ms) = match messages::read_sasl_authenticate(&self.response).map_err(broken)? {
                (0, answer, lifetime_ms) => (answer.to_vec(), lifetime_ms),
                _ => return Err(io::Error::new(ErrorKind::PermissionDenied, "the broker refuses the credentials")),
            };
            Ok(answer)
        })?;
        self.renewed_at = renewed_at(began, lifetime_ms);
        Ok(())
    }

    /// Send a request, and wait for its response.
    pub fn ask(
        &mut self,
        request: impl FnOnce(i32, &str) -> Vec<u8>,
        timeout: Duration,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        self.send(request)?;
        self.receive(timeout, stop)
    }

    pub fn send(&mut self, request: impl FnOnce(i32, &str) -> Vec<u8>) -> io::Result<()> {
        self.correlation = self.correlation.wrapping_add(1);
        let request = request(self.correlation, &self.client);
        self.stream.write_all(&request)
    }

    /// Wait for the response to the last request.
    pub fn receive(&mut self, timeout: Duration, stop: &AtomicBool) -> io::Result<()> {
        let until = Instant::now() + timeout;
        self.fill(4, until, stop)?;
        let size = i32::from_be_bytes(self.response[..4].try_into().expect("four bytes"));
        let size = usize::try_from(size).unwrap_or(0);
        if !(4..=RESPONSE_BYTES_MAX).contains(&size) {
            return Err(broken("the size of a response is out of range"));
        }
        let filled = self.fill(size, until, stop);
        self.unread = size - self.response.len();
        filled?;
        if self.response[..4] != self.correlation.to_be_bytes() {
            return Err(broken("a response is not that of the request"));
        }
        Ok(())
    }

    /// Send a last request, and wait a moment for its response: a broker does not handle it if the connection ends with
    /// bytes that nobody has read.
    pub fn end(&mut self, request: impl FnOnce(i32, &str) -> Vec<u8>) {
        let (until, never) = (Instant::now() + END_WAIT, AtomicBool::new(false));
        let unread = std::mem::take(&mut self.unread);
        if self.send(request).is_err() || self.fill(unread, until, &never).is_err() {
            return;
        }
        // The first response may be that to the request before.
        let answered = |connection: &mut Connection| {
            let left = until.saturating_duration_since(Instant::now());
            connection.receive(left, &never).is_ok()
        };
        let _is_ended = answered(self) || answered(self);
    }

    /// Read exactly so many bytes.
    fn fill(&mut self, size: usize, until: Instant, stop: &AtomicBool) -> io::Result<()> {
        self.response.clear();
        while self.response.len() < size {
            if stop.load(Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            if Instant::now() > until {
                return Err(ErrorKind::TimedOut.into());
            }
            let missing = (size - self.response.len()).min(SLICE_BYTES);
            if self.response.capacity() - self.response.len() < missing {
                // Doubled, and no larger than the response.
                let more = self.response.len().max(RESERVED_BYTES_MAX);
                self.response.reserve_exact(more.min(size - self.response.len()));
            }
            match (&mut self.stream).take(missing as u64).read_to_end(&mut self.response) {
                Ok(read) if read < missing => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Return when a session is to be renewed, of which the broker has said the lifetime after it was asked to begin it: with
/// some of the lifetime left, for what is under way then.
fn renewed_at(began: Instant, lifetime_ms: i64) -> Option<Instant> {
    let lifetime_ms = u64::try_from(lifetime_ms).ok().filter(|lifetime_ms| *lifetime_ms > 0)?;
    began.checked_add(Duration::from_millis(lifetime_ms / 20 * 17).max(RENEWED_AFTER_MIN))
}

/// What is no valid response may be one of something that is no broker: connect again.
fn broken(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}
