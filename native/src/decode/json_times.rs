//! Times in texts: RFC 3339, with a zone or without.

use arrow_schema::TimeUnit;

use super::wire::{Doubtful, Read};

const SECOND: i128 = 1_000_000_000;
const DAY_S: i64 = 86_400;

/// What times are counted in.
#[derive(Clone, Copy)]
pub struct Unit(pub TimeUnit);

impl Unit {
    fn nanoseconds(self) -> i128 {
        match self.0 {
            TimeUnit::Second => SECOND,
            TimeUnit::Millisecond => 1_000_000,
            TimeUnit::Microsecond => 1_000,
            TimeUnit::Nanosecond => 1,
        }
    }

    pub fn of_a_day(self) -> i64 {
        (SECOND / self.nanoseconds()) as i64 * DAY_S
    }

    /// Return a time in this unit, if it fits exactly.
    fn of(self, seconds: i64, nanoseconds: i128) -> Read<i64> {
        let nanoseconds = i128::from(seconds) * SECOND + nanoseconds;
        if nanoseconds % self.nanoseconds() != 0 {
            return Err(Doubtful);
        }
        i64::try_from(nanoseconds / self.nanoseconds()).map_err(|_| Doubtful)
    }
}

/// Return a point in time: ``2026-11-28T10:00:00.5+01:00``.
pub fn moment(text: &[u8], unit: Unit, has_zone: bool) -> Read<i64> {
    let (day, rest) = text.split_at_checked(10).ok_or(Doubtful)?;
    let (separator, rest) = rest.split_first().ok_or(Doubtful)?;
    if !matches!(separator, b'T' | b't' | b' ') {
        return Err(Doubtful);
    }
    let (clock, rest) = rest.split_at_checked(8).ok_or(Doubtful)?;
    let seconds = i64::from(date(day)?) * DAY_S + seconds_of_day(clock)?;
    let (nanoseconds, zone) = fraction(rest)?;
    let offset = match zone {
        [] if !has_zone => 0,
        [b'Z' | b'z'] if has_zone => 0,
        [sign @ (b'+' | b'-'), offset @ ..] if has_zone => {
            let offset = hours_and_minutes(offset)?;
            if *sign == b'+' { offset } else { -offset }
        }
        _ => return Err(Doubtful),
    };
    unit.of(seconds - offset, nanoseconds)
}

/// Return the days since 1970 of a date: ``2026-11-28``.
pub fn date(text: &[u8]) -> Read<i32> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text else { return Err(Doubtful) };
    let year = 100 * number(*y1, *y2)? + number(*y3, *y4)?;
    let (month, day) = (number(*m1, *m2)?, number(*d1, *d2)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return Err(Doubtful),
    };
    if year == 0 || day == 0 || day > days {
        return Err(Doubtful);
    }
    // Years from March on: the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    // 719,468 days after the first of March in the year 0.
    Ok((365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468) as i32)
}

/// Return a time of day: ``10:00``, ``10:00:00`` or ``10:00:00.5``.
pub fn time_of_day(text: &[u8], unit: Unit) -> Read<i64> {
    if text.len() == 5 {
        return unit.of(hours_and_minutes(text)?, 0);
    }
    let (clock, rest) = text.split_at_checked(8).ok_or(Doubtful)?;
    let (nanoseconds, rest) = fraction(rest)?;
    if rest.is_empty() { unit.of(seconds_of_day(clock)?, nanoseconds) } else { Err(Doubtful) }
}

fn seconds_of_day(text: &[u8]) -> Read<i64> {
    let [clock @ .., b':', s1, s2] = text else { return Err(Doubtful) };
    let seconds = number(*s1, *s2)?;
    if seconds < 60 { Ok(hours_and_minutes(clock)? + seconds) } else { Err(Doubtful) }
}

/// Return the seconds of ``10:00``.
fn hours_and_minutes(text: &[u8]) -> Read<i64> {
    let [h1, h2, b':', m1, m2] = text else { return Err(Doubtful) };
    let (hours, minutes) = (number(*h1, *h2)?, number(*m1, *m2)?);
    if hours < 24 && minutes < 60 { Ok(3_600 * hours + 60 * minutes) } else { Err(Doubtful) }
}

/// Return the nanoseconds of ``.5``, which may be missing, and what follows.
fn fraction(text: &[u8]) -> Read<(i128, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else { return Ok((0, text)) };
    let count = digits.iter().take_while(|digit| digit.is_ascii_digit()).count();
    if !(1..=9).contains(&count) {
        return Err(Doubtful);
    }
    let (digits, rest) = digits.split_at(count);
    let value = digits.iter().fold(0, |value, digit| 10 * value + i128::from(digit - b'0'));
    Ok((value * 10i128.pow(9 - count as u32), rest))
}

fn number(tens: u8, ones: u8) -> Read<i64> {
    if !tens.is_ascii_digit() || !ones.is_ascii_digit() {
        return Err(Doubtful);
    }
    Ok(i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
}
