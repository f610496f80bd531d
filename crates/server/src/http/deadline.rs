// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a request must be done: the body's `deadline_ms` or, for whoever cannot change bodies (a gateway), a header; the
//! sooner of both. The clock starts when the header fields are there. What a client does not wait for any longer need not be
//! computed; a client that hangs up says the same without a number.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use tokio::time::timeout_at;

use crate::api::error::ApiError;
use crate::api::sampling::Generation;
use crate::digits::whole;

/// Milliseconds, as `deadline_ms`.
const HEADER: &str = "x-request-timeout-ms";

/// A request's arrival, and how long its header gives it.
pub(super) struct Arrival {
    at: Instant,
    header: Option<Duration>,
}

impl Arrival {
    /// Now.
    pub(super) fn now(headers: &HeaderMap) -> Result<Arrival, ApiError> {
        let given = headers.get_all(HEADER).iter().map(|value| {
            let millis: Option<i64> = value.to_str().ok().and_then(whole);
            let range = 1..=Generation::MOST_DEADLINE;
            let millis = millis.filter(|m| range.contains(m)).ok_or_else(|| {
                let why = format!("must be an integer from 1 to {}", range.end());
                ApiError::invalid(HEADER, why)
            })?;
            Ok(Duration::from_millis(millis.cast_unsigned()))
        });
        let given = given.collect::<Result<Vec<_>, _>>()?;
        Ok(Arrival {
            at: Instant::now(),
            header: given.into_iter().min(),
        })
    }

    /// What comes of `reading` the body, if it ends before the header's deadline: a body that trickles in is not waited for.
    pub(super) async fn read<T>(
        &self,
        reading: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let Some(whole) = self.header else {
            return reading.await;
        };
        let end = (self.at + whole).into();
        match timeout_at(end, reading).await {
            Ok(read) => read,
            Err(_) => Err(passed(whole)),
        }
    }

    /// Time left to a request whose body gives it so much; `None`: any time.
    pub(super) fn left(&self, body: Option<Duration>) -> Result<Option<Duration>, ApiError> {
        let Some(whole) = [self.header, body].into_iter().flatten().min() else {
            return Ok(None);
        };
        match whole.checked_sub(self.at.elapsed()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(passed(whole)),
        }
    }
}

fn passed(whole: Duration) -> ApiError {
    ApiError::Deadline(format!(
        "its deadline of {} ms passed before it could be queued",
        whole.as_millis()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(header: Option<&str>, ago: u64) -> Result<Arrival, ApiError> {
        let mut headers = HeaderMap::new();
        if let Some(value) = header.and_then(|h| h.parse().ok()) {
            headers.insert(HEADER, value);
        }
        let arrival = Arrival::now(&headers)?;
        Ok(Arrival {
            at: arrival.at - Duration::from_millis(ago),
            ..arrival
        })
    }

    #[test]
    fn the_sooner_of_header_and_body_counts_from_the_arrival() {
        let left = |header, ago, body: Option<u64>| {
            let arrival = arrival(header, ago).expect("valid");
            arrival.left(body.map(Duration::from_millis))
        };
        assert!(matches!(left(None, 50, None), Ok(None)));
        let most = Duration::from_millis(950);
        for (header, body) in [
            (Some("1000"), None),
            (Some("9000"), Some(1000)),
            (Some("1000"), Some(9000)),
        ] {
            let left = left(header, 50, body)
                .expect("time is left")
                .expect("a deadline");
            assert!(
                left <= most && left > Duration::from_millis(100),
                "{left:?}"
            );
        }
        let passed = left(Some("40"), 50, Some(900)).expect_err("passed");
        assert_eq!((passed.status(), passed.code()), (504, "deadline_exceeded"));
    }

    #[tokio::test]
    async fn a_body_that_trickles_in_is_not_waited_for_beyond_the_deadline() {
        let soon = arrival(Some("20"), 0).expect("valid");
        let never = std::future::pending::<Result<(), ApiError>>();
        let refused = soon.read(never).await.expect_err("passed");
        assert_eq!(refused.code(), "deadline_exceeded");
        for header in [Some("20000"), None] {
            let read = arrival(header, 0)
                .expect("valid")
                .read(async { Ok(7) })
                .await;
            assert!(matches!(read, Ok(7)), "{header:?}");
        }
    }

    #[test]
    fn of_several_headers_the_soonest_counts() {
        let mut headers = HeaderMap::new();
        for value in ["9000", "40", "500"] {
            headers.append(HEADER, value.parse().expect("a value"));
        }
        let arrival = Arrival::now(&headers).expect("valid");
        assert_eq!(arrival.header, Some(Duration::from_millis(40)));
        headers.append(HEADER, "soon".parse().expect("a value"));
        assert!(Arrival::now(&headers).is_err());
    }

    #[test]
    fn a_header_that_is_no_number_of_milliseconds_is_refused() {
        for value in [
            "0",
            "-1",
            "1.5",
            "1e3",
            "+5",
            "5, 6",
            "soon",
            "",
            "86400001",
            "99999999999999999999",
        ] {
            let refused = arrival(Some(value), 0).err().expect("refused");
            assert_eq!(
                (refused.status(), refused.param()),
                (400, Some(HEADER)),
                "{value}"
            );
        }
        assert!(arrival(Some("86400000"), 0).is_ok());
    }
}
