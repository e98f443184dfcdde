//! Operations that clients want executed once, and their requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_campaign_checker::history;

use crate::random::Random;

/// How many callers there are. Each key is used by all of them, mostly for different payments.
const TENANTS: u64 = 8;
/// One in so many keys is used by two callers for the very same request. Only then would a key
/// without its caller give one the answer to the other: with another body it is refused as misuse.
const TWINS_ONE_IN: u64 = 6;
/// One in so many keys goes to the application that gives the provider a key; the others show a
/// second execution as a second charge.
const KEYED_ONE_IN: u64 = 5;
/// Longer than `max_request` of the gateways' configuration.
const OVERSIZED: usize = 80 * 1024;
const MAX_AMOUNT: u64 = 500_000;
/// Larger than any amount, so that misuse asks for something else.
const OTHER: i64 = 1_000_000;

/// The gateways with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leg {
    Postgres,
    Sqlite,
}

/// Whether the provider gets a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Keyed,
    Strict,
}

impl Route {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keyed => "payments",
            Self::Strict => "strict",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Keyed => "/payments",
            Self::Strict => "/unkeyed/payments",
        }
    }
}

/// Something a client wants done once.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) number: u64,
    pub(crate) leg: Leg,
    pub(crate) route: Route,
    tenant: u64,
    account: u64,
    key: String,
    reference: String,
    amount: i64,
}

/// A request that no server should take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MalformedRequest {
    NoKey,
    MalformedKey,
    ShortKey,
    Oversized,
    MalformedJson,
    MalformedFraming,
    TwoKeys,
}

impl MalformedRequest {
    pub(crate) const ALL: [Self; 7] = [
        Self::NoKey,
        Self::MalformedKey,
        Self::ShortKey,
        Self::Oversized,
        Self::MalformedJson,
        Self::MalformedFraming,
        Self::TwoKeys,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoKey => "no_key",
            Self::MalformedKey => "malformed_key",
            Self::ShortKey => "short_key",
            Self::Oversized => "oversized_body",
            Self::MalformedJson => "malformed_json",
            Self::MalformedFraming => "malformed_framing",
            Self::TwoKeys => "two_keys",
        }
    }
}

impl Operation {
    /// Its idempotency key, without quotes.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn line(&self, refusable: bool) -> history::Operation {
        history::Operation {
            op: self.number,
            tenant: self.tenant(),
            key: self.key.clone(),
            reference: self.reference.clone(),
            amount: self.amount,
            route: self.route.name().to_owned(),
            refusable,
        }
    }

    fn tenant(&self) -> String {
        format!("tenant-{}", self.tenant)
    }

    /// Asks for the state of the operation with this id, as its own caller or as the next one.
    pub(crate) fn peek(&self, id: &str, own: bool) -> Vec<u8> {
        let tenant = if own {
            self.tenant
        } else {
            (self.tenant + 1) % TENANTS
        };
        format!(
            "GET /.semel/operations/{id} HTTP/1.1\r\nHost: shop.example\r\n\
             Authorization: Bearer tenant-{tenant}\r\n\r\n"
        )
        .into_bytes()
    }

    /// Its request. The order of members and the white space vary, the meaning does not.
    pub(crate) fn request(&self, fault: Option<&str>, random: &mut Random) -> Vec<u8> {
        self.head(&self.body(self.amount, random), &self.key_line(), fault)
    }

    /// Its key with another amount.
    pub(crate) fn misuse(&self, random: &mut Random) -> Vec<u8> {
        self.head(
            &self.body(self.amount + OTHER, random),
            &self.key_line(),
            None,
        )
    }

    /// Its request with another spelling of the path, or for another host, and how it differs.
    pub(crate) fn disguised(&self, random: &mut Random) -> (&'static str, Vec<u8>) {
        let path = self.route.path();
        let spelled = match random.below(8) {
            0 => format!("{path}/"),
            1 => format!("/{path}"),
            2 => path.to_ascii_uppercase(),
            3 => format!("{path};v=1"),
            4 => path.replacen("pay", "%50ay", 1),
            _ => path.to_owned(),
        };
        let request = self.request(None, random);
        if spelled != path {
            let line = (format!("POST {path} "), format!("POST {spelled} "));
            return ("other_spelling", replace(&request, &line.0, &line.1));
        }
        let (host, other) = ("Host: shop.example", "Host: other.example");
        ("other_host", replace(&request, host, other))
    }

    pub(crate) fn bad(&self, kind: MalformedRequest, random: &mut Random) -> Vec<u8> {
        let body = self.body(self.amount, random);
        match kind {
            MalformedRequest::NoKey => self.head(&body, "", None),
            MalformedRequest::MalformedKey => {
                self.head(&body, "Idempotency-Key: \"not closed\\\r\n", None)
            }
            MalformedRequest::ShortKey => self.head(&body, "Idempotency-Key: \"short\"\r\n", None),
            MalformedRequest::TwoKeys => self.head(&body, &self.key_line().repeat(2), None),
            MalformedRequest::Oversized => {
                let body = format!("{}{body}", " ".repeat(OVERSIZED));
                self.head(&body, &self.key_line(), None)
            }
            MalformedRequest::MalformedJson => {
                self.head(&body[..body.len() / 2], &self.key_line(), None)
            }
            MalformedRequest::MalformedFraming => {
                let lines = format!("{}Transfer-Encoding: chunked\r\n", self.key_line());
                self.head(&body, &lines, None)
            }
        }
    }

    fn key_line(&self) -> String {
        format!("Idempotency-Key: \"{}\"\r\n", self.key)
    }

    fn body(&self, amount: i64, random: &mut Random) -> String {
        let amount = format!("\"amount\":{amount}");
        let account = format!("\"account\":\"acct_{}\"", self.account);
        let reference = format!("\"merchant_reference\":\"{}\"", self.reference);
        let currency = "\"currency\":\"EUR\"".to_owned();
        let mut members = [amount, account, reference, currency];
        for last in (1..members.len()).rev() {
            members.swap(last, random.index(last + 1));
        }
        let between = *random.pick(&[",", ", ", " , "]);
        format!("{{{}}}", members.join(between))
    }

    fn head(&self, body: &str, key: &str, fault: Option<&str>) -> Vec<u8> {
        let fault = fault.map_or_else(String::new, |fault| format!("X-Demo-Fault: {fault}\r\n"));
        format!(
            "POST {} HTTP/1.1\r\nHost: shop.example\r\nAuthorization: Bearer {}\r\n{key}{fault}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.route.path(),
            self.tenant(),
            body.len()
        )
        .into_bytes()
    }
}

/// All operations of a run.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    next: AtomicU64,
    /// The operations to be executed.
    wanted: Mutex<Vec<(Operation, Progress)>>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    /// A client got the final answer.
    Ended,
    /// That answer was erased.
    Erased,
}

/// The index of an operation in the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationIndex(usize);

impl Operations {
    /// A new operation that is meant to be refused.
    pub(crate) fn refusable(&self, leg: Leg, random: &mut Random) -> Operation {
        let number = self.number();
        let amount = random.between(1, MAX_AMOUNT);
        Operation {
            reference: format!("refused-{number:010}"),
            ..alone(number, leg, amount)
        }
    }

    /// A new operation.
    pub(crate) fn wanted(&self, leg: Leg, random: &mut Random) -> (Operation, OperationIndex) {
        let number = self.number();
        let operation = if (number / TENANTS).is_multiple_of(TWINS_ONE_IN) {
            // All that both send comes from the number of the first.
            let first = number & !1;
            let amount = Random::new(first).between(1, MAX_AMOUNT);
            Operation {
                account: first % TENANTS,
                reference: format!("order-{first:010}"),
                ..alone(number, leg, amount)
            }
        } else {
            alone(number, leg, random.between(1, MAX_AMOUNT))
        };
        let mut wanted = self.lock();
        wanted.push((operation.clone(), Progress::Open));
        (operation, OperationIndex(wanted.len() - 1))
    }

    /// No client sends any of these again.
    pub(crate) fn forget_all(&self) {
        self.lock().clear();
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A client got the final answer.
    pub(crate) fn end(&self, index: OperationIndex) {
        self.set(index, Progress::Ended);
    }

    /// The final answer was erased, or may have been.
    pub(crate) fn erase(&self, index: OperationIndex) {
        self.set(index, Progress::Erased);
    }

    fn set(&self, index: OperationIndex, now: Progress) {
        if let Some((_, progress)) = self.lock().get_mut(index.0) {
            *progress = now;
        }
    }

    /// The operations without a final answer.
    pub(crate) fn open(&self) -> Vec<(Operation, OperationIndex)> {
        self.select(Progress::Open)
    }

    /// The operations with a final answer.
    pub(crate) fn ended(&self) -> Vec<(Operation, OperationIndex)> {
        self.select(Progress::Ended)
    }

    /// The operations whose final answer was erased.
    pub(crate) fn erased(&self) -> Vec<(Operation, OperationIndex)> {
        self.select(Progress::Erased)
    }

    /// One of the operations whose final answer was erased.
    pub(crate) fn any_erased(&self, random: &mut Random) -> Option<Operation> {
        let erased = self.erased();
        let chosen = erased.get(random.index(erased.len().max(1)))?;
        Some(chosen.0.clone())
    }

    /// One of the operations with a final answer; none if a few draws find none.
    pub(crate) fn any_ended(&self, leg: Leg, random: &mut Random) -> Option<Operation> {
        const DRAWS: usize = 8;
        let wanted = self.lock();
        (0..DRAWS)
            .filter_map(|_| wanted.get(random.index(wanted.len())))
            .find(|(operation, progress)| *progress == Progress::Ended && operation.leg == leg)
            .map(|(operation, _)| operation.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn select(&self, which: Progress) -> Vec<(Operation, OperationIndex)> {
        let wanted = self.lock();
        let indices = wanted.iter().enumerate();
        indices
            .filter(|(_, (_, progress))| *progress == which)
            .map(|(index, (operation, _))| (operation.clone(), OperationIndex(index)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Operation, Progress)>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn replace(request: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(request);
    text.replacen(from, to, 1).into_bytes()
}

/// An operation that shares nothing but its key with others.
fn alone(number: u64, leg: Leg, amount: u64) -> Operation {
    let key = number / TENANTS;
    let route = if key.is_multiple_of(KEYED_ONE_IN) {
        Route::Keyed
    } else {
        Route::Strict
    };
    Operation {
        number,
        leg,
        route,
        tenant: number % TENANTS,
        account: number % TENANTS,
        key: format!("campaign-key-{key:012}"),
        reference: format!("order-{number:010}"),
        amount: i64::try_from(amount).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn tenants_share_keys_and_twins_all_but_their_tenant() {
        let (operations, mut random) = (Operations::default(), Random::new(1));
        let all: Vec<Operation> = (0..TENANTS * TWINS_ONE_IN)
            .map(|_| operations.wanted(Leg::Postgres, &mut random).0)
            .collect();
        let body = |operation: &Operation| operation.body(operation.amount, &mut Random::new(4));
        for one in &all {
            let same: Vec<_> = all.iter().filter(|other| other.key == one.key).collect();
            assert_eq!(same.len() as u64, TENANTS);
            let own = same.iter().filter(|other| other.tenant == one.tenant);
            assert_eq!(own.count(), 1);
            let twins = one.number < TENANTS;
            let alike = all.iter().filter(|other| body(other) == body(one));
            assert_eq!(alike.count(), if twins { 2 } else { 1 });
        }
    }

    #[test]
    fn a_retry_means_the_same_and_misuse_does_not() {
        let (operations, mut random) = (Operations::default(), Random::new(2));
        let (operation, index) = operations.wanted(Leg::Postgres, &mut random);
        let meant = |request: Vec<u8>| {
            let request = text(request);
            let (_, body) = request.split_once("\r\n\r\n").unwrap();
            serde_json::from_str::<serde_json::Value>(body).unwrap()
        };
        let first = meant(operation.request(None, &mut random));
        assert!((0..20).all(|_| meant(operation.request(Some("decline"), &mut random)) == first));
        assert_ne!(meant(operation.misuse(&mut random)), first);

        assert_eq!((operations.open().len(), operations.ended().len()), (1, 0));
        operations.end(index);
        assert_eq!((operations.open().len(), operations.ended().len()), (0, 1));
    }

    #[test]
    fn bad_requests_are_bad() {
        let (operations, mut random) = (Operations::default(), Random::new(3));
        let operation = operations.refusable(Leg::Sqlite, &mut random);
        let mut bad = |how| text(operation.bad(how, &mut random));
        assert!(!bad(MalformedRequest::NoKey).contains("Idempotency-Key"));
        assert_eq!(
            bad(MalformedRequest::TwoKeys)
                .matches("Idempotency-Key")
                .count(),
            2
        );
        assert!(bad(MalformedRequest::Oversized).len() > OVERSIZED);
        assert!(bad(MalformedRequest::MalformedFraming).contains("chunked"));
        assert!(!bad(MalformedRequest::MalformedJson).ends_with('}'));
        assert!(operations.open().is_empty());
    }
}
