// SPDX-License-Identifier: MIT OR Apache-2.0
//! `strftime_now`: today's date, as some templates write it into their system prompt.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A moment in UTC, by the proleptic Gregorian calendar.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: u64,
    /// 1 to 31.
    day: u64,
    /// Second of the day.
    second: u64,
    /// Days since Sunday.
    weekday: usize,
    /// 1 to 366.
    day_of_year: u64,
}

/// Writes `now` (UTC) as Python's `strftime` would in the C locale; an unknown directive is an error with its name.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, String> {
    let t = civil(now);
    let (hour, minute, second) = (t.second / 3600, t.second / 60 % 60, t.second % 60);
    let month = MONTHS[(t.month - 1) as usize];
    let day = DAYS[t.weekday];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next().ok_or("a lone `%` at the end")?;
        let padded = directive != '-';
        if !padded {
            directive = chars.next().ok_or("a lone `%-` at the end")?;
        }
        let number = |n: u64, width: usize| {
            if padded {
                format!("{n:0width$}")
            } else {
                n.to_string()
            }
        };
        match directive {
            'Y' => out += &t.year.to_string(),
            'y' => out += &number(t.year.rem_euclid(100) as u64, 2),
            'm' => out += &number(t.month, 2),
            'B' => out += month,
            'b' | 'h' => out += &month[..3],
            'd' => out += &number(t.day, 2),
            'e' => out += &format!("{:>2}", t.day),
            'j' => out += &number(t.day_of_year, 3),
            'A' => out += day,
            'a' => out += &day[..3],
            'w' => out += &t.weekday.to_string(),
            'H' => out += &number(hour, 2),
            'I' => out += &number((hour + 11) % 12 + 1, 2),
            'p' => out += if hour < 12 { "AM" } else { "PM" },
            'M' => out += &number(minute, 2),
            'S' => out += &number(second, 2),
            'F' => out += &format!("{}-{:02}-{:02}", t.year, t.month, t.day),
            'T' => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => out += "UTC",
            'z' => out += "+0000",
            '%' => out.push('%'),
            other => return Err(format!("the directive `%{other}`")),
        }
    }
    Ok(out)
}

/// Days to date: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil(now: SystemTime) -> Civil {
    let seconds = match now.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    };
    let days = seconds.div_euclid(86_400);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * from_march + 2) / 153;
    let day = from_march - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let day_of_year = BEFORE[(month - 1) as usize] + day + i64::from(leap && month > 2);
    Civil {
        year,
        month: month as u64,
        day: day as u64,
        second: seconds.rem_euclid(86_400) as u64,
        weekday: (days + 4).rem_euclid(7) as usize,
        day_of_year: day_of_year as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format).unwrap()
    }

    // Values from Python's datetime.fromtimestamp(t, timezone.utc).strftime.
    #[test]
    fn dates_are_those_of_python() {
        assert_eq!(
            at(0, "%d %b %Y %H:%M:%S %a %j"),
            "01 Jan 1970 00:00:00 Thu 001"
        );
        assert_eq!(
            at(1_709_251_199, "%Y-%m-%d %A %I:%M %p %j %y"),
            "2024-02-29 Thursday 11:59 PM 060 24"
        );
        assert_eq!(
            at(1_735_689_600, "%d %B %Y, %-d/%-m"),
            "01 January 2025, 1/1"
        );
        assert_eq!(
            at(4_102_444_800, "%F %T %w 100%%"),
            "2100-01-01 00:00:00 5 100%"
        );
    }

    #[test]
    fn an_unknown_directive_is_named() {
        assert_eq!(
            strftime(UNIX_EPOCH, "%Q").unwrap_err(),
            "the directive `%Q`"
        );
        assert!(strftime(UNIX_EPOCH, "%").is_err());
    }
}
