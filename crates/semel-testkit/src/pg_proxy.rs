//! A fault-injecting proxy in front of PostgreSQL.
//!
//! The worst moment to lose a connection is between a commit and its reply: the server committed,
//! and the client does not know. The proxy parses the protocol on both sides, so it can cut or hold a
//! connection exactly there.
//!
//! ```no_run
//! use semel_testkit::pg_proxy::{Proxy, Trigger};
//!
//! # async fn demo() {
//! let proxy = Proxy::in_front_of("postgres://postgres@127.0.0.1:5432/postgres").await;
//! let lost = proxy.cut(Trigger::committed());
//! // … a client at `proxy.url()` commits, and gets an error …
//! lost.reached().await;
//! // … and on a direct connection the row is there.
//! # }
//! ```
//!
//! It refuses TLS.

mod connection;
mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::faulty::Gate;

/// The port of a URL without one.
const DEFAULT_PORT: &str = "5432";

/// A proxy. Dropping it cuts its connections and closes its port.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

/// The point in a connection's session at which the proxy acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    point: Point,
    nth: usize,
    every: bool,
}

/// See the constructors of [`Trigger`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Point {
    Before(String),
    Answered(String),
    Completed(String),
}

/// A step of a connection, for a [watcher](Proxy::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// This statement is about to be forwarded.
    Before(&'a str),
    /// The server executed these without an error, and its reply was not forwarded yet.
    Answered(&'a [Arc<str>]),
}

/// Decides whether a connection, by its number, continues.
type Watch = Box<dyn Fn(usize, Step<'_>) -> bool + Send + Sync>;

/// The watcher, if one is set.
#[derive(Default)]
struct Watcher(OnceLock<Watch>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// State that the connections share.
#[derive(Debug)]
struct Shared {
    /// `HOST:PORT` of the server.
    upstream: String,
    plans: Mutex<Vec<Plan>>,
    watcher: Watcher,
    valve: watch::Sender<Valve>,
}

/// Faults that affect all connections.
#[derive(Clone, Copy, Debug, Default)]
struct Valve {
    frozen: bool,
    refusing: bool,
    /// Delay of every message.
    delay: Duration,
    /// How often all connections were cut.
    cuts: usize,
    /// Connections so far.
    accepted: usize,
}

/// A planned fault.
#[derive(Debug)]
struct Plan {
    when: Trigger,
    /// How often the trigger matched.
    seen: usize,
    action: Action,
}

/// The kind of a planned fault.
#[derive(Clone, Debug)]
enum Action {
    Cut(Gate),
    Hold(Gate),
}

impl Trigger {
    /// Before a statement whose SQL contains `sql` is forwarded: the server does not receive it, and
    /// rolls back the implicit transaction.
    pub fn before(sql: impl Into<String>) -> Self {
        Self::at(Point::Before(sql.into()))
    }

    /// When the server executed, without an error, everything up to the Sync after a statement whose
    /// SQL contains `sql`, and its reply was not forwarded. Outside of a transaction block it has
    /// committed.
    pub fn answered(sql: impl Into<String>) -> Self {
        Self::at(Point::Answered(sql.into()))
    }

    /// As [`answered`](Trigger::answered), by the server's command tag:
    /// `INSERT 0 1`, `UPDATE 1`, `SELECT 5`. It has to begin with `tag`; the zero byte that ends
    /// it belongs to it, so that `UPDATE 1\0` does not match `UPDATE 10`. Only after a commit:
    /// statements within an open transaction do not match.
    pub fn completed(tag: impl Into<String>) -> Self {
        Self::at(Point::Completed(tag.into()))
    }

    /// Between a `COMMIT` and its reply. A `COMMIT` that became a rollback does not match.
    pub fn committed() -> Self {
        Self::completed("COMMIT\0")
    }

    /// Only the `nth` time, counted from 1 and over all connections.
    pub fn nth(self, nth: usize) -> Self {
        Self { nth, ..self }
    }

    /// From then on every time, until [`Proxy::heal`].
    pub fn every(self) -> Self {
        Self {
            every: true,
            ..self
        }
    }

    fn at(point: Point) -> Self {
        Self {
            point,
            nth: 1,
            every: false,
        }
    }
}

impl Proxy {
    /// Starts a proxy on a free port in front of the server that `url` names.
    ///
    /// # Panics
    /// Where `url` is not the address of one server, or there is no free port.
    pub async fn in_front_of(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let here = listener.local_addr().expect("an address").to_string();
        let (upstream, url) =
            rewrite(url, &here).expect("postgres://[USER@]HOST[:PORT][/DATABASE]");
        let shared = Arc::new(Shared {
            upstream,
            plans: Mutex::default(),
            watcher: Watcher::default(),
            valve: watch::Sender::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Self {
            url,
            shared,
            _accepting: accepting,
        }
    }

    /// The server's URL through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Cuts a connection at the trigger, on both sides. The gate is open and only counts: see
    /// [`Gate::reached`] and [`Gate::reached_times`].
    pub fn cut(&self, when: Trigger) -> Gate {
        let gate = Gate::closed();
        gate.open();
        self.plan(when, Action::Cut(gate.clone()));
        gate
    }

    /// Holds a connection at the trigger until the gate opens: nothing more is forwarded in that
    /// direction.
    pub fn hold(&self, when: Trigger) -> Gate {
        let gate = Gate::closed();
        self.plan(when, Action::Hold(gate.clone()));
        gate
    }

    /// Calls `watch` before every step of every connection from now on, and cuts the connection if it
    /// returns `false`. Only the first watcher is used.
    pub fn watch(&self, watch: impl Fn(usize, Step<'_>) -> bool + Send + Sync + 'static) {
        let _ = self.shared.watcher.0.set(Box::new(watch));
    }

    /// Removes all plans and forwards everything again. Held connections stay held.
    pub fn heal(&self) {
        self.shared.plans().clear();
        self.shared.valve.send_modify(|valve| {
            valve.frozen = false;
            valve.refusing = false;
            valve.delay = Duration::ZERO;
        });
    }

    /// Forwards nothing on any connection until [`heal`](Proxy::heal), without an error: a network that
    /// drops everything.
    pub fn freeze(&self) {
        self.shared.valve.send_modify(|valve| valve.frozen = true);
    }

    /// Delays every message until [`heal`](Proxy::heal): a distant or busy server.
    pub fn delay(&self, delay: Duration) {
        self.shared.valve.send_modify(|valve| valve.delay = delay);
    }

    /// Closes every new connection at once, until [`heal`](Proxy::heal).
    pub fn refuse(&self) {
        self.shared.valve.send_modify(|valve| valve.refusing = true);
    }

    /// Cuts every open connection.
    pub fn cut_all(&self) {
        self.shared.valve.send_modify(|valve| valve.cuts += 1);
    }

    /// Number of connections so far, including refused ones.
    pub fn connections(&self) -> usize {
        self.shared.valve.borrow().accepted
    }

    fn plan(&self, when: Trigger, action: Action) {
        self.shared.plans().push(Plan {
            when,
            seen: 0,
            action,
        });
    }
}

impl Shared {
    fn plans(&self) -> MutexGuard<'_, Vec<Plan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a plan needs complete replies before they are forwarded.
    fn watches_answers(&self) -> bool {
        let waits = |plan: &Plan| !matches!(plan.when.point, Point::Before(_));
        self.watcher.0.get().is_some() || self.plans().iter().any(waits)
    }

    /// Whether the watcher lets the connection continue.
    fn goes_on(&self, connection: usize, step: Step<'_>) -> bool {
        let watch = self.watcher.0.get();
        watch.is_none_or(|watch| watch(connection, step))
    }

    /// The action that is due; `times` returns how often a trigger matched.
    fn fire(&self, times: impl Fn(&Point) -> usize) -> Option<Action> {
        let mut plans = self.plans();
        let mut fired = None;
        for (place, plan) in plans.iter_mut().enumerate() {
            let before = plan.seen;
            plan.seen += times(&plan.when.point);
            let due = plan.seen > before && plan.seen >= plan.when.nth;
            if due && fired.is_none() {
                fired = Some((place, plan.when.every, plan.action.clone()));
            }
        }
        let (place, every, action) = fired?;
        if !every {
            plans.remove(place);
        }
        Some(action)
    }

    /// Waits while the proxy is frozen, and for its delay.
    async fn thawed(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        drop(self.valve.subscribe().wait_for(|valve| !valve.frozen).await);
        let delay = self.valve.borrow().delay;
        if !delay.is_zero() {
            // sleeps because a delayed message is the purpose.
            tokio::time::sleep(delay).await;
        }
    }
}

impl Action {
    /// Performs the fault; returns whether the connection continues.
    async fn perform(self) -> bool {
        match self {
            Self::Cut(gate) => {
                gate.pass().await;
                false
            }
            Self::Hold(gate) => {
                gate.pass().await;
                true
            }
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Owned here, so that they end with the proxy.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        shared.valve.send_modify(|valve| valve.accepted += 1);
        let valve = *shared.valve.borrow();
        if valve.refusing {
            continue;
        }
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let mut watched = shared.valve.subscribe();
            let all_cut = watched.wait_for(|now| now.cuts > valve.cuts);
            tokio::select! {
                () = connect(client, valve.accepted, &shared) => {}
                _ = all_cut => {}
            }
        });
    }
}

async fn connect(client: TcpStream, number: usize, shared: &Shared) {
    // A server that is away is one that hangs up.
    if let Ok(server) = TcpStream::connect(&shared.upstream).await {
        connection::run(client, server, number, shared).await;
    }
}

/// The server that an address names, and the address with `here` in its place.
fn rewrite(url: &str, here: &str) -> Option<(String, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (format!("{user}@"), host),
        None => (String::new(), authority),
    };
    if host.is_empty() || host.contains(',') {
        return None;
    }
    let has_port = host.rfind(':') > host.rfind(']');
    let upstream = if has_port {
        host.to_owned()
    } else {
        format!("{host}:{DEFAULT_PORT}")
    };
    Some((upstream, format!("{scheme}://{user}{here}{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_through_the_proxy() {
        for (url, upstream, through) in [
            ("postgres://h", "h:5432", "postgres://here"),
            (
                "postgres://u:p@h:1/db?a=b",
                "h:1",
                "postgres://u:p@here/db?a=b",
            ),
            (
                "postgresql://u@[::1]/db",
                "[::1]:5432",
                "postgresql://u@here/db",
            ),
            ("postgres://[::1]:7?a=b", "[::1]:7", "postgres://here?a=b"),
        ] {
            let found = rewrite(url, "here");
            assert_eq!(found, Some((upstream.into(), through.into())), "{url}");
        }
        for url in ["", "host=h", "postgres:///db", "postgres://a,b/db"] {
            assert_eq!(rewrite(url, "here"), None, "{url}");
        }
    }

    #[test]
    fn a_trigger_fires_at_its_nth_match_once_or_every_time() {
        let shared = Shared {
            upstream: String::new(),
            plans: Mutex::default(),
            watcher: Watcher::default(),
            valve: watch::Sender::default(),
        };
        let plan = |when| {
            shared.plans().push(Plan {
                when,
                seen: 0,
                action: Action::Cut(Gate::closed()),
            });
        };
        let insert = |times| {
            let fired = shared.fire(|point| match point {
                Point::Completed(tag) if tag == "INSERT" => times,
                Point::Completed(_) | Point::Before(_) | Point::Answered(_) => 0,
            });
            fired.is_some()
        };
        plan(Trigger::before("x"));
        assert!(!shared.watches_answers());
        plan(Trigger::completed("INSERT").nth(3));
        assert!(shared.watches_answers());
        assert!(!insert(1));
        assert!(!insert(0));
        assert!(insert(2));
        assert!(!insert(5));
        plan(Trigger::completed("INSERT").nth(2).every());
        assert!(!insert(1));
        assert!(insert(1));
        assert!(!insert(0));
        assert!(insert(1));
    }
}
