//! The token of SASL's mechanism OAUTHBEARER (RFC 7628), which Python fetches.

use std::sync::Mutex;
use std::time::Instant;

use crate::partitions::locked;

/// Without `Debug`, as all that holds a secret.
pub struct Token {
    pub text: String,
    pub extensions: Vec<(String, String)>,
    pub valid_until: Instant,
}

/// The last token, for the connections of a reader.
#[derive(Default)]
pub struct Tokens(Mutex<Option<Token>>);

impl Tokens {
    pub fn put(&self, token: Token) {
        *locked(&self.0) = Some(token);
    }

    pub fn has_valid(&self) -> bool {
        locked(&self.0).as_ref().is_some_and(Token::is_valid)
    }

    /// Return what the client says first; None: there is no valid token.
    pub fn message(&self) -> Option<Vec<u8>> {
        locked(&self.0).as_ref().filter(|token| token.is_valid()).map(Token::message)
    }
}

impl Token {
    fn is_valid(&self) -> bool {
        Instant::now() < self.valid_until
    }

    fn message(&self) -> Vec<u8> {
        let mut message = format!("n,,\x01auth=Bearer {}\x01", self.text);
        for (name, value) in &self.extensions {
            message += &format!("{name}={value}\x01");
        }
        message += "\x01";
        message.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn token(valid_until: Instant) -> Token {
        Token { text: "abc".to_owned(), extensions: vec![("team".to_owned(), "a b".to_owned())], valid_until }
    }

    #[test]
    fn a_valid_token_is_said_with_its_extensions() {
        let tokens = Tokens::default();
        assert_eq!(tokens.message(), None);
        tokens.put(token(Instant::now() + Duration::from_secs(9)));
        assert_eq!(tokens.message().unwrap(), b"n,,\x01auth=Bearer abc\x01team=a b\x01\x01");
    }

    #[test]
    fn an_expired_token_is_not_said() {
        let tokens = Tokens::default();
        tokens.put(token(Instant::now()));
        assert_eq!((tokens.message(), tokens.has_valid()), (None, false));
    }
}
