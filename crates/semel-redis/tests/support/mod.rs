//! A Redis that says what a test tells it to say, and the words in which tests speak.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::transition::Replay;
use semel_core::{
    Completion, Decision, Fingerprint, Held, Identity, Key, OperationId, Policy, Reserve, Response,
    Store, Windows,
};
use semel_testkit::faulty::Gate;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Where `cargo xtask test` says that a real Redis is; `None` is said aloud.
pub(crate) fn redis_url() -> Option<String> {
    let url = std::env::var("SEMEL_TEST_REDIS_URL").ok();
    if url.is_none() {
        println!("SKIPPED: no Redis, SEMEL_TEST_REDIS_URL is not set");
    }
    url
}

/// An address at which nobody listens: port 1 is reserved.
pub(crate) const NOBODY: &str = "redis://127.0.0.1:1/0";

/// Long enough for an answer on a machine that does something else.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// A prefix that no other test has.
pub(crate) fn prefix() -> String {
    format!("semel-test:{}:", OperationId::generate())
}

pub(crate) const WINDOW: Duration = Duration::from_hours(24);
pub(crate) const BODY_WINDOW: Duration = Duration::from_hours(12);

pub(crate) fn fingerprint(of: u8) -> Fingerprint {
    Fingerprint::from_parts(1, [of; 32])
}

pub(crate) fn request_of(tenant: &str, key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new(tenant, "create_payment", Key::new(key).unwrap()).unwrap(),
        fingerprints: fingerprint(1).into(),
        owner: "host-1/42".into(),
        policy: Policy {
            windows: Windows {
                replay: WINDOW,
                body: BODY_WINDOW,
                tombstone: None,
            },
            ..Policy::default()
        },
    }
}

pub(crate) fn request(key: &str) -> Reserve {
    request_of("tenant-1", key)
}

/// Executes and completes; says under which name.
pub(crate) async fn completed(
    store: &impl Store,
    request: Reserve,
    body: &'static str,
) -> OperationId {
    let decision = store.reserve(request).await.unwrap();
    let Decision::Execute(grant) = decision else {
        panic!("must execute, but: {decision:?}");
    };
    let response = Response {
        status: 201,
        headers: vec![("etag".into(), Bytes::from_static(b"\"1\""))],
        body: Some(Bytes::from_static(body.as_bytes())),
        schema_version: 0,
    };
    let completion = Completion {
        response,
        resource: None,
    };
    let held = store.complete(grant.fence, completion).await.unwrap();
    assert_eq!(held, Held::Applied);
    grant.fence.id
}

pub(crate) async fn replay(store: &impl Store, request: Reserve) -> Replay {
    let decision = store.reserve(request).await.unwrap();
    let Decision::Replay(replay) = decision else {
        panic!("must replay, but: {decision:?}");
    };
    replay
}

pub(crate) async fn replayed_body(store: &impl Store, request: Reserve) -> Option<Bytes> {
    replay(store, request).await.response.body
}

/// What the fake says to a GET.
pub(crate) enum Say {
    /// This value, or that there is none.
    Value(Option<Vec<u8>>),
    /// These bytes as they are.
    Raw(Vec<u8>),
    /// These bytes, and then the connection closes.
    Last(Vec<u8>),
    /// Nothing, ever.
    Nothing,
}

/// What is said to a GET, by its key and by what is stored under it.
type Liar = Box<dyn FnMut(&[u8], Option<Vec<u8>>) -> Say + Send>;

/// A SET as it came.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) millis: u64,
}

/// A Redis of a test. Clones are the same.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    written: Vec<Written>,
    liar: Option<Liar>,
    /// Says what was once told, by turns, whatever it is asked for.
    parrot: bool,
    gets: usize,
    dels: usize,
    connections: usize,
    /// Where a SET waits before it is performed.
    hold_sets: Option<Gate>,
    /// What a SET is told instead of being performed.
    refuse_sets: Option<&'static str>,
}

impl Fake {
    /// A Redis that is honest as yet.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            url: format!("redis://{}/0", listener.local_addr().unwrap()),
            state: Arc::default(),
        };
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.with(|state| state.connections += 1);
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        fake
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    /// Says to every GET what `liar` says.
    pub(crate) fn lie(&self, liar: impl FnMut(&[u8], Option<Vec<u8>>) -> Say + Send + 'static) {
        self.with(|state| state.liar = Some(Box::new(liar)));
    }

    /// Says to every GET something that was once SET, by turns.
    pub(crate) fn parrot(&self) {
        self.with(|state| state.parrot = true);
    }

    /// Tells the truth again.
    pub(crate) fn repent(&self) {
        self.with(|state| state.liar = None);
    }

    pub(crate) fn hold_sets(&self, gate: &Gate) {
        self.with(|state| state.hold_sets = Some(gate.clone()));
    }

    pub(crate) fn refuse_sets(&self, error: &'static str) {
        self.with(|state| state.refuse_sets = Some(error));
    }

    pub(crate) fn flush(&self) {
        self.with(|state| state.values.clear());
    }

    pub(crate) fn written(&self) -> Vec<Written> {
        self.with(|state| state.written.clone())
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.with(|state| state.values.keys().cloned().collect())
    }

    pub(crate) fn gets(&self) -> usize {
        self.with(|state| state.gets)
    }

    pub(crate) fn dels(&self) -> usize {
        self.with(|state| state.dels)
    }

    pub(crate) fn connections(&self) -> usize {
        self.with(|state| state.connections)
    }

    async fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(command) = read_command(&mut stream).await {
            let (reply, closes) = match self.perform(command).await {
                Say::Value(Some(value)) => {
                    let mut reply = format!("${}\r\n", value.len()).into_bytes();
                    reply.extend(value);
                    reply.extend(b"\r\n");
                    (reply, false)
                }
                Say::Value(None) => (b"$-1\r\n".to_vec(), false),
                Say::Raw(bytes) => (bytes, false),
                Say::Last(bytes) => (bytes, true),
                Say::Nothing => continue,
            };
            if stream.write_all(&reply).await.is_err() || closes {
                return;
            }
        }
    }

    async fn perform(&self, command: Vec<Vec<u8>>) -> Say {
        let ok = || Say::Raw(b"+OK\r\n".to_vec());
        match command[0].to_ascii_uppercase().as_slice() {
            b"PING" => Say::Raw(b"+PONG\r\n".to_vec()),
            b"GET" => self.with(|state| {
                state.gets += 1;
                let mut stored = state.values.get(&command[1]).cloned();
                if state.parrot && !state.written.is_empty() {
                    let turn = state.gets % state.written.len();
                    stored = Some(state.written[turn].value.clone());
                }
                match &mut state.liar {
                    Some(liar) => liar(&command[1], stored),
                    None => Say::Value(stored),
                }
            }),
            b"SET" => {
                if let Some(gate) = self.with(|state| state.hold_sets.clone()) {
                    gate.pass().await;
                }
                assert_eq!(command[3], b"PX");
                let written = Written {
                    key: command[1].clone(),
                    value: command[2].clone(),
                    millis: String::from_utf8_lossy(&command[4]).parse().unwrap(),
                };
                self.with(|state| {
                    if let Some(error) = state.refuse_sets {
                        return Say::Raw(error.as_bytes().to_vec());
                    }
                    state
                        .values
                        .insert(written.key.clone(), written.value.clone());
                    state.written.push(written);
                    ok()
                })
            }
            b"DEL" => self.with(|state| {
                state.dels += 1;
                let removed = state.values.remove(&command[1]).is_some();
                Say::Raw(format!(":{}\r\n", u8::from(removed)).into_bytes())
            }),
            _ => ok(),
        }
    }
}

async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let parts = read_number(stream, '*').await?;
    let mut command = Vec::with_capacity(parts);
    for _ in 0..parts {
        let length = read_number(stream, '$').await?;
        let mut part = vec![0; length + 2];
        stream.read_exact(&mut part).await.ok()?;
        part.truncate(length);
        command.push(part);
    }
    Some(command)
}

async fn read_number(stream: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}
