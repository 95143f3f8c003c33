//! Exact numbers of JSON.

use super::json_text::Number;
use super::wire::{Doubtful, Read};

/// The value of a number that is whole, also one as 12.0.
#[inline]
pub fn whole(number: Number) -> Read<i128> {
    let (digits, rest) = number.text.split_at(number.whole);
    // An exponent may make a number whole as well.
    if !rest.is_empty() && !rest[1..].iter().all(|digit| *digit == b'0') {
        return Err(Doubtful);
    }
    if let Some(b'e' | b'E') = rest.first() {
        return Err(Doubtful);
    }
    let (is_negative, digits) = signed(digits);
    let mut value = 0u64;
    for digit in digits {
        let next = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
        value = next.ok_or(Doubtful)?;
    }
    Ok(if is_negative { -i128::from(value) } else { i128::from(value) })
}

/// The value of a number times ten to the power of `scale`, without rounding.
pub fn decimal(number: Number, precision: u8, scale: usize) -> Read<i128> {
    let (digits, rest) = number.text.split_at(number.whole);
    let (is_negative, digits) = signed(digits);
    let fraction = match rest {
        [] => rest,
        [b'.', fraction @ ..] if fraction.iter().all(u8::is_ascii_digit) => fraction,
        _ => return Err(Doubtful),
    };
    let zeros = fraction.iter().rev().take_while(|digit| **digit == b'0').count();
    let fraction = &fraction[..fraction.len() - zeros];
    let missing = scale.checked_sub(fraction.len()).ok_or(Doubtful)?;
    let mut value = 0i128;
    for digit in digits.iter().chain(fraction).copied().chain(std::iter::repeat_n(b'0', missing)) {
        let next = value.checked_mul(10).and_then(|value| value.checked_add(i128::from(digit - b'0')));
        value = next.ok_or(Doubtful)?;
    }
    if value >= 10i128.checked_pow(precision.into()).ok_or(Doubtful)? {
        return Err(Doubtful);
    }
    Ok(if is_negative { -value } else { value })
}

#[inline]
fn signed(digits: &[u8]) -> (bool, &[u8]) {
    match digits {
        [b'-', digits @ ..] => (true, digits),
        _ => (false, digits),
    }
}
