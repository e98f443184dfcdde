//! A fake Redis that tests control, and helpers for requests and replays.

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

/// The URL of the Redis that `cargo xtask test` starts; prints `SKIPPED` if there is none.
pub(crate) fn redis_url() -> Option<String> {
    let url = std::env::var("SEMEL_TEST_REDIS_URL").ok();
    if url.is_none() {
        println!("SKIPPED: no Redis, SEMEL_TEST_REDIS_URL is not set");
    }
    url
}

/// An address without a listener: port 1 is reserved.
pub(crate) const UNREACHABLE_URL: &str = "redis://127.0.0.1:1/0";

/// Long enough for a reply on a busy machine.
pub(crate) const LONG_TIMEOUT: Duration = Duration::from_secs(10);

/// A prefix that no other test uses.
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

/// Executes and completes a request, and returns the id of its record.
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

/// How the fake replies to a command.
pub(crate) enum FakeReply {
    /// This value, or nil.
    Value(Option<Vec<u8>>),
    /// These bytes, unframed.
    Raw(Vec<u8>),
    /// These bytes, after which the connection closes.
    RawThenClose(Vec<u8>),
    /// No reply.
    Silence,
}

/// Chooses the reply to a GET by its key and the value stored under it.
type GetScript = Box<dyn FnMut(&[u8], Option<Vec<u8>>) -> FakeReply + Send>;

/// A SET command that was performed.
#[derive(Clone, Debug)]
pub(crate) struct WrittenEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) millis: u64,
}

/// A fake Redis server. Clones share its state.
#[derive(Clone)]
pub(crate) struct FakeRedis {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    written: Vec<WrittenEntry>,
    get_script: Option<GetScript>,
    /// Replies to every GET with a value that was once SET under any key, in turn.
    wrong_values: bool,
    gets: usize,
    dels: usize,
    connections: usize,
    /// A gate at which a SET waits before it is performed.
    hold_sets: Option<Gate>,
    /// The error with which SETs are refused.
    refuse_sets: Option<&'static str>,
}

impl FakeRedis {
    /// Starts a server that replies correctly until a test changes that.
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

    fn with<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock().unwrap())
    }

    /// Replies to every GET with what `script` returns.
    pub(crate) fn script_gets(
        &self,
        script: impl FnMut(&[u8], Option<Vec<u8>>) -> FakeReply + Send + 'static,
    ) {
        self.with(|state| state.get_script = Some(Box::new(script)));
    }

    /// Replies to every GET with a value that was once SET under any key, in turn.
    pub(crate) fn return_wrong_values(&self) {
        self.with(|state| state.wrong_values = true);
    }

    /// Replies correctly to GETs again.
    pub(crate) fn clear_get_script(&self) {
        self.with(|state| state.get_script = None);
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

    pub(crate) fn written(&self) -> Vec<WrittenEntry> {
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
                FakeReply::Value(Some(value)) => {
                    let mut reply = format!("${}\r\n", value.len()).into_bytes();
                    reply.extend(value);
                    reply.extend(b"\r\n");
                    (reply, false)
                }
                FakeReply::Value(None) => (b"$-1\r\n".to_vec(), false),
                FakeReply::Raw(bytes) => (bytes, false),
                FakeReply::RawThenClose(bytes) => (bytes, true),
                FakeReply::Silence => continue,
            };
            if stream.write_all(&reply).await.is_err() || closes {
                return;
            }
        }
    }

    async fn perform(&self, command: Vec<Vec<u8>>) -> FakeReply {
        let ok = || FakeReply::Raw(b"+OK\r\n".to_vec());
        match command[0].to_ascii_uppercase().as_slice() {
            b"PING" => FakeReply::Raw(b"+PONG\r\n".to_vec()),
            b"GET" => self.with(|state| {
                state.gets += 1;
                let mut stored = state.values.get(&command[1]).cloned();
                if state.wrong_values && !state.written.is_empty() {
                    let turn = state.gets % state.written.len();
                    stored = Some(state.written[turn].value.clone());
                }
                match &mut state.get_script {
                    Some(script) => script(&command[1], stored),
                    None => FakeReply::Value(stored),
                }
            }),
            b"SET" => {
                if let Some(gate) = self.with(|state| state.hold_sets.clone()) {
                    gate.pass().await;
                }
                assert_eq!(command[3], b"PX");
                let written = WrittenEntry {
                    key: command[1].clone(),
                    value: command[2].clone(),
                    millis: String::from_utf8_lossy(&command[4]).parse().unwrap(),
                };
                self.with(|state| {
                    if let Some(error) = state.refuse_sets {
                        return FakeReply::Raw(error.as_bytes().to_vec());
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
                FakeReply::Raw(format!(":{}\r\n", u8::from(removed)).into_bytes())
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
