//! ExtendDB is killed while callers write. What it acknowledged is there afterwards, and no key
//! executes twice.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::transition::{Completion, Decision, Held};
use semel_core::{Fence, Status, Store as _};
use semel_testkit::ManualClock;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::faults::request;
use super::server::options;
use crate::Dynamo;

/// How often the server is killed.
const KILLS: usize = 4;
/// Callers at a time.
const CALLERS: usize = 6;
/// Keys of each two callers.
const KEYS: usize = 50;

/// A server of this test alone. Killed when dropped.
struct OwnServer {
    program: PathBuf,
    directory: TempDir,
    port: u16,
    child: Option<Child>,
}

impl OwnServer {
    fn start() -> Option<Self> {
        let servers = std::env::var_os("SEMEL_DYNAMODB_SERVERS").map(PathBuf::from)?;
        let program = servers.join("node_modules/@extenddb/linux-x64/extenddb");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut server = Self {
            program,
            directory: tempfile::tempdir().unwrap(),
            port,
            child: None,
        };
        let done = server
            .command(&["init", "--config", "extenddb.toml"])
            .status();
        assert!(done.unwrap().success());
        server.serve();
        Some(server)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.directory.path())
            .env("HOME", self.directory.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn serve(&mut self) {
        let port = self.port.to_string();
        let arguments = [
            "serve",
            "--config",
            "extenddb.toml",
            "--foreground",
            "--port",
            &port,
        ];
        self.child = Some(self.command(&arguments).spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn url(&self) -> String {
        let port = self.port;
        format!(
            "dynamodb://semel-killed?region=us-east-1&shards=2&endpoint=http://127.0.0.1:{port}"
        )
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the store acknowledged: the fence of every grant, and the completed ones.
#[derive(Default)]
struct Acknowledged {
    granted: HashMap<String, Vec<Fence>>,
    completed: Vec<Fence>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_server_acknowledged_is_kept() {
    let Some(mut server) = OwnServer::start() else {
        println!("SKIPPED: SEMEL_DYNAMODB_SERVERS is not set: run `cargo xtask test`");
        return;
    };
    let clock = Arc::new(ManualClock::default());
    let options = options(&server.url()).clock(clock);
    while options.clone().migrate().await.is_err() {
        // sleeps because a server that starts has no other sign
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let store = options.open().await.unwrap();
    let acknowledged = Arc::new(Mutex::new(Acknowledged::default()));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (store, acknowledged) = (store.clone(), Arc::clone(&acknowledged));
        callers.spawn(async move { call(&store, caller, &acknowledged).await });
    }
    for kill in 1..=KILLS {
        let enough = CALLERS / 2 * KEYS * kill / (KILLS + 1);
        while acknowledged.lock().unwrap().completed.len() < enough {
            // sleeps because the callers decide when the next kill is due
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.kill();
        server.serve();
    }
    callers.join_all().await;

    let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    assert_eq!(acknowledged.granted.len(), CALLERS / 2 * KEYS);
    for (key, grants) in &acknowledged.granted {
        assert_eq!(
            grants.len(),
            1,
            "{key} was granted more than once: {grants:?}"
        );
    }
    assert_eq!(acknowledged.completed.len(), CALLERS / 2 * KEYS);
    for fence in acknowledged.completed {
        let record = store.find(fence.id).await.unwrap();
        let record = record.unwrap_or_else(|| panic!("{fence:?} was lost"));
        assert_eq!(
            (record.fence(), record.state.status()),
            (fence, Status::Completed)
        );
    }
}

/// Executes keys, of which each has two callers, and repeats what has no answer.
async fn call(store: &Dynamo, caller: usize, acknowledged: &Mutex<Acknowledged>) {
    for place in 0..KEYS {
        let key = format!("{}-{place}", caller / 2);
        // Its own, by which a grant without an answer is found.
        let owner = format!("{key}-{caller}");
        let Some(fence) = reserve(store, &key, &owner, acknowledged).await else {
            continue;
        };
        loop {
            match store
                .complete(fence, Completion::new(201, vec![], key.clone()))
                .await
            {
                Ok(Held::Applied | Held::Repeated) => break,
                Ok(Held::Fenced(by)) => panic!("{key} is fenced: {by:?}"),
                // sleeps because the server is starting again
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        acknowledged.lock().unwrap().completed.push(fence);
    }
}

/// The grant of a key; `None` if the other caller has it.
async fn reserve(
    store: &Dynamo,
    key: &str,
    owner: &str,
    acknowledged: &Mutex<Acknowledged>,
) -> Option<Fence> {
    loop {
        let mut asked = request(key);
        asked.owner = owner.into();
        let fence = match store.reserve(asked).await {
            Ok(Decision::Execute(grant)) => grant.fence,
            // The grant whose answer was lost, or one of the other caller.
            Ok(Decision::InProgress(running)) => {
                let Ok(Some(record)) = store.find(running.fence.id).await else {
                    continue;
                };
                if record.owner.as_str() != owner {
                    return None;
                }
                running.fence
            }
            Ok(Decision::Replay(_)) => return None,
            Ok(other) => panic!("{key}: {other:?}"),
            Err(_) => {
                // sleeps because the server is starting again
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let mut acknowledged = acknowledged.lock().unwrap();
        let grants = acknowledged.granted.entry(key.to_owned()).or_default();
        grants.push(fence);
        return Some(fence);
    }
}
