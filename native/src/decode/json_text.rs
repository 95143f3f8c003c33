//! Reads a text of JSON, strictly.
//!
//! What Python's reader refuses, or reads in ways of its own, is an error here: it decides.

use super::wire::{Doubtful, Read};

/// Lists and objects within one another.
const NESTING_MAX: usize = 128;
/// Digits of one number, with its point.
const DIGITS_MAX: usize = 400;
/// Digits of an exponent: Python's decimals have no greater ones than some.
const EXPONENT_MAX: usize = 4;

/// A string between its quotes.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    raw: &'a [u8],
    has_escapes: bool,
}

impl<'a> Text<'a> {
    /// Return the bytes of a string as it stands there; an error if it has escapes.
    pub fn plain(self) -> Read<&'a [u8]> {
        if self.has_escapes { Err(Doubtful) } else { Ok(self.raw) }
    }

    /// Append the string.
    #[inline]
    pub fn write(self, to: &mut Vec<u8>) -> Read<()> {
        if !self.has_escapes {
            to.extend_from_slice(self.raw);
            return Ok(());
        }
        let mut rest = self.raw;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
            to.extend_from_slice(&rest[..at]);
            rest = escape(rest.get(at + 1..).unwrap_or_default(), to)?;
        }
        to.extend_from_slice(rest);
        Ok(())
    }

    /// Return the string, by a buffer if it has escapes.
    #[inline]
    pub fn get<'b>(self, buffer: &'b mut Vec<u8>) -> Read<&'b [u8]>
    where
        'a: 'b,
    {
        if !self.has_escapes {
            return Ok(self.raw);
        }
        buffer.clear();
        self.write(buffer)?;
        Ok(buffer)
    }
}

/// Append what an escape stands for, and return what follows it.
fn escape<'a>(after: &'a [u8], to: &mut Vec<u8>) -> Read<&'a [u8]> {
    let (kind, rest) = after.split_first().ok_or(Doubtful)?;
    let byte = match kind {
        b'"' | b'\\' | b'/' => *kind,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => {
            let (mut code, mut rest) = hexadecimal(rest)?;
            if (0xd800..0xdc00).contains(&code) {
                let (low, after) = hexadecimal(rest.strip_prefix(b"\\u").ok_or(Doubtful)?)?;
                if !(0xdc00..0xe000).contains(&low) {
                    return Err(Doubtful);
                }
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                rest = after;
            }
            let letter = char::from_u32(code).ok_or(Doubtful)?;
            to.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            return Ok(rest);
        }
        _ => return Err(Doubtful),
    };
    to.push(byte);
    Ok(rest)
}

fn hexadecimal(bytes: &[u8]) -> Read<(u32, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(4).ok_or(Doubtful)?;
    let mut code = 0;
    for digit in digits {
        code = code << 4 | (*digit as char).to_digit(16).ok_or(Doubtful)?;
    }
    Ok((code, rest))
}

/// A number as it stands there.
#[derive(Clone, Copy)]
pub struct Number<'a> {
    pub text: &'a [u8],
    /// Where its point or its exponent begins, or its end.
    pub whole: usize,
}

/// Reads what is left of a text.
pub struct Json<'a> {
    rest: &'a [u8],
    levels: usize,
}

impl<'a> Json<'a> {
    pub fn new(bytes: &'a [u8]) -> Read<Json<'a>> {
        std::str::from_utf8(bytes).map_err(|_| Doubtful)?;
        if has_long_number(bytes) { Err(Doubtful) } else { Ok(Json { rest: bytes, levels: 0 }) }
    }

    /// Return the next byte that is no space, and leave it; 0 at the end.
    #[inline(always)]
    pub fn peek(&mut self) -> u8 {
        loop {
            match self.rest {
                [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] => self.rest = rest,
                [byte, ..] => return *byte,
                [] => return 0,
            }
        }
    }

    /// Read a byte, after spaces, if it is the next one.
    #[inline(always)]
    pub fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte && !self.rest.is_empty();
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    #[inline(always)]
    pub fn expect(&mut self, byte: u8) -> Read<()> {
        if self.takes(byte) { Ok(()) } else { Err(Doubtful) }
    }

    /// Begin a list or an object.
    pub fn open(&mut self, byte: u8) -> Read<()> {
        self.levels += 1;
        if self.levels > NESTING_MAX { Err(Doubtful) } else { self.expect(byte) }
    }

    /// Read what follows an item: whether it is another one, or the end.
    #[inline(always)]
    pub fn goes_on(&mut self, end: u8) -> Read<bool> {
        if self.takes(b',') {
            return Ok(true);
        }
        self.levels -= 1;
        self.expect(end)?;
        Ok(false)
    }

    /// Read the end of a list or an object without items, if it is there.
    #[inline(always)]
    pub fn is_empty(&mut self, end: u8) -> bool {
        let is_empty = self.takes(end);
        if is_empty {
            self.levels -= 1;
        }
        is_empty
    }

    pub fn end(&mut self) -> Read<()> {
        self.peek();
        if self.rest.is_empty() { Ok(()) } else { Err(Doubtful) }
    }

    pub fn word(&mut self, word: &str) -> Read<()> {
        self.peek();
        self.rest = self.rest.strip_prefix(word.as_bytes()).ok_or(Doubtful)?;
        Ok(())
    }

    #[inline]
    pub fn text(&mut self) -> Read<Text<'a>> {
        self.expect(b'"')?;
        let (mut at, mut has_escapes) = (0, false);
        loop {
            at += special(&self.rest[at..]);
            match self.rest.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    has_escapes = true;
                    at += 2;
                    if at > self.rest.len() {
                        return Err(Doubtful);
                    }
                }
                _ => return Err(Doubtful),
            }
        }
        let raw = &self.rest[..at];
        self.rest = &self.rest[at + 1..];
        Ok(Text { raw, has_escapes })
    }

    #[inline]
    pub fn number(&mut self) -> Read<Number<'a>> {
        self.peek();
        let all = self.rest;
        let mut at = usize::from(all.first() == Some(&b'-'));
        let first = at;
        at += digits(&all[at..])?;
        if all[first] == b'0' && at > first + 1 {
            return Err(Doubtful);
        }
        let whole = at;
        if all.get(at) == Some(&b'.') {
            at += 1 + digits(&all[at + 1..])?;
        }
        if let Some(b'e' | b'E') = all.get(at) {
            at += 1 + usize::from(matches!(all.get(at + 1), Some(b'+' | b'-')));
            let count = digits(all.get(at..).unwrap_or_default())?;
            if count > EXPONENT_MAX {
                return Err(Doubtful);
            }
            at += count;
        }
        self.rest = &all[at..];
        Ok(Number { text: &all[..at], whole })
    }
}

/// Count digits; an error if there are none.
#[inline(always)]
fn digits(bytes: &[u8]) -> Read<usize> {
    let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 { Err(Doubtful) } else { Ok(count) }
}

const ONES: u64 = u64::MAX / 255;
const HIGH: u64 = ONES << 7;

/// Return where the first quote, backslash or control character is, or the length.
#[inline(always)]
fn special(bytes: &[u8]) -> usize {
    let mut at = 0;
    for eight in bytes.chunks_exact(8) {
        let letters = u64::from_le_bytes(eight.try_into().unwrap_or_default());
        let (quotes, slashes) = (letters ^ (ONES * b'"' as u64), letters ^ (ONES * b'\\' as u64));
        // The lowest of these bits is right; a higher one may be set by a carry.
        let found = (quotes.wrapping_sub(ONES) & !quotes
            | slashes.wrapping_sub(ONES) & !slashes
            | letters.wrapping_sub(ONES * 0x20) & !letters)
            & HIGH;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = &bytes[at..];
    at + rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len())
}

/// Whether there are more digits in a row than Python's reader takes, in a number or elsewhere.
fn has_long_number(bytes: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    // So many in a row are at one of these places, and on both sides of it.
    (DIGITS_MAX..bytes.len()).step_by(DIGITS_MAX + 1).any(|at| {
        let before = bytes[..at].iter().rev().take_while(|byte| is_part(byte)).count();
        let after = bytes[at..].iter().take_while(|byte| is_part(byte)).count();
        after > 0 && before + after > DIGITS_MAX
    })
}
