//! TLS, and the SASL mechanisms PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, Mac};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use sha2::{Sha256, Sha512};

use crate::tokens::{Token, Tokens};

/// What a server may ask for, and no more: each iteration is work for the client.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4_096..=10_000_000;

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(buffer),
            Stream::Tls(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// Certificates and a key, in PEM.
pub struct Certificates {
    pub authorities: Vec<u8>,
    pub chain: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
}

/// The mechanisms with a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl Mechanism {
    pub const ALL: [Mechanism; 3] = [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512];

    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Without `Debug`, as all that holds a secret.
#[derive(Clone)]
pub enum Credentials {
    Password { mechanism: Mechanism, user: String, password: String },
    Tokens(Arc<Tokens>),
}

impl Credentials {
    /// The mechanism's name.
    pub fn mechanism(&self) -> &'static str {
        match self {
            Credentials::Password { mechanism, .. } => mechanism.name(),
            Credentials::Tokens(_) => "OAUTHBEARER",
        }
    }
}

#[derive(Clone, Default)]
pub struct Security {
    tls: Option<Arc<ClientConfig>>,
    pub credentials: Option<Credentials>,
}

impl Security {
    pub fn new(certificates: Option<Certificates>, credentials: Option<Credentials>) -> io::Result<Security> {
        let tls = certificates.map(tls).transpose()?.map(Arc::new);
        Ok(Security { tls, credentials })
    }

    /// Use another token from now on.
    pub fn put_token(&self, token: Token) {
        if let Some(Credentials::Tokens(tokens)) = &self.credentials {
            tokens.put(token);
        }
    }

    /// Return whether there is something to authenticate with: a token may be missing.
    pub fn is_ready(&self) -> bool {
        !matches!(&self.credentials, Some(Credentials::Tokens(tokens)) if !tokens.has_valid())
    }

    pub fn wrap(&self, host: &str, stream: TcpStream) -> io::Result<Stream> {
        let Some(config) = &self.tls else {
            return Ok(Stream::Plain(stream));
        };
        let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
        let connection = ClientConnection::new(config.clone(), name).map_err(invalid)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, stream))))
    }
}

fn invalid(error: impl Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why.to_owned())
}

fn tls(certificates: Certificates) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&certificates.authorities) {
        roots.add(authority.map_err(invalid)?).map_err(invalid)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .with_root_certificates(roots);
    let (Some(chain), Some(key)) = (certificates.chain, certificates.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(invalid)?;
    builder.with_client_auth_cert(chain, key).map_err(invalid)
}

/// Say who this client is; `say` sends a message and returns the server's answer.
pub fn authenticate(credentials: &Credentials, say: &mut dyn FnMut(&[u8]) -> io::Result<Vec<u8>>) -> io::Result<()> {
    match credentials {
        Credentials::Password { mechanism, user, password } => match mechanism {
            Mechanism::Plain => say(format!("\0{user}\0{password}").as_bytes()).map(|_| ()),
            Mechanism::ScramSha256 => scram(&Sha256Hash, user, password, say),
            Mechanism::ScramSha512 => scram(&Sha512Hash, user, password, say),
        },
        Credentials::Tokens(tokens) => {
            let message = tokens.message().ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no valid token"))?;
            if say(&message)?.is_empty() {
                return Ok(());
            }
            // It says what is wrong; once the client has heard it, it ends with an error.
            say(b"\x01")?;
            Err(refused("the broker refuses the token"))
        }
    }
}

/// A hash as SCRAM uses it.
trait Hash {
    fn digest(&self, message: &[u8]) -> Vec<u8>;
    fn mac(&self, key: &[u8], message: &[u8]) -> Vec<u8>;
    fn salted(&self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8>;
}

macro_rules! hash {
    ($name:ident, $hash:ty, $size:literal) => {
        struct $name;

        impl Hash for $name {
            fn digest(&self, message: &[u8]) -> Vec<u8> {
                use sha2::Digest;
                <$hash>::digest(message).to_vec()
            }

            fn mac(&self, key: &[u8], message: &[u8]) -> Vec<u8> {
                let mut mac = Hmac::<$hash>::new_from_slice(key).expect("any length is a key");
                mac.update(message);
                mac.finalize().into_bytes().to_vec()
            }

            fn salted(&self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
                let mut salted = vec![0; $size];
                pbkdf2::pbkdf2_hmac::<$hash>(password, salt, iterations, &mut salted);
                salted
            }
        }
    };
}

hash!(Sha256Hash, Sha256, 32);
hash!(Sha512Hash, Sha512, 64);

/// SCRAM (RFC 5802), without channel binding.
fn scram(
    hash: &dyn Hash,
    user: &str,
    password: &str,
    say: &mut dyn FnMut(&[u8]) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(invalid)?;
    let nonce = BASE64.encode(random);
    let first = format!("n={},r={nonce}", user.replace('=', "=3D").replace(',', "=2C"));
    let answer = String::from_utf8(say(format!("n,,{first}").as_bytes())?).map_err(invalid)?;
    let part = |key: &str| answer.split(',').find_map(|part| part.strip_prefix(key)).ok_or_else(malformed);
    let server_nonce = part("r=")?;
    let salt = BASE64.decode(part("s=")?).map_err(|_| malformed())?;
    let iterations: u32 = part("i=")?.parse().map_err(|_| malformed())?;
    if !server_nonce.starts_with(&nonce) || !ITERATIONS.contains(&iterations) {
        return Err(malformed());
    }
    let salted = hash.salted(password.as_bytes(), &salt, iterations);
    let client_key = hash.mac(&salted, b"Client Key");
    let last = format!("c=biws,r={server_nonce}");
    let message = format!("{first},{answer},{last}");
    let signature = hash.mac(&hash.digest(&client_key), message.as_bytes());
    let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, sign)| key ^ sign).collect();
    let end = say(format!("{last},p={}", BASE64.encode(proof)).as_bytes())?;
    let expected = hash.mac(&hash.mac(&salted, b"Server Key"), message.as_bytes());
    let expected = format!("v={}", BASE64.encode(expected));
    if end.split(|byte| *byte == b',').next() == Some(expected.as_bytes()) {
        Ok(())
    } else {
        Err(refused("SCRAM: the server does not know the password"))
    }
}

fn malformed() -> io::Error {
    refused("SCRAM: the server's answer is malformed")
}
