//! A process that is killed loses nothing that it was told is stored.
//!
//! The test starts itself again as a child that reserves and completes as fast as it can
//! and says so on its standard output *after* each answer; it is killed with SIGKILL in the
//! middle of that, hundreds of times, over one and the same file. Another child completes
//! together with rows of its own; after each kill the two agree.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use semel_core::transaction::{Finished, Word};
use semel_core::transition::Held;
use semel_core::{Completion, Inspect, Record, Response, State, Store, Transaction};
use semel_sqlite::Sqlite;
use support::{completion, granted};

/// How often the child is killed.
const KILLS: u64 = 300;

/// How often the child is killed that writes rows of its own.
const KILLS_WITH_ROWS: u32 = 60;

/// Executions under way at once in the child, so that commits are groups.
const TASKS: usize = 8;

const DATABASE: &str = "SEMEL_CRASH_TEST_DATABASE";

/// What the child was told before it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Granted,
    Completed,
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("semel.db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut random = 0x2545_f491_4f6c_dd1d;
    let mut acknowledged = [0, 0];
    for kill in 0..KILLS {
        // The first dies before it has opened the file, others after a few hundred answers.
        random = xorshift(random);
        let answers = if kill == 0 { 0 } else { random % 300 };
        let told = run_and_kill("child_that_is_killed", &database, answers);
        runtime.block_on(async {
            let store = Sqlite::open(&database).await.unwrap();
            for (key, told) in &told {
                verify(&store, key, *told).await;
                acknowledged[*told as usize] += 1;
            }
        });
    }
    let integrity: String = rusqlite::Connection::open(&database)
        .unwrap()
        .pragma_query_value(None, "integrity_check", |row| row.get(0))
        .unwrap();
    assert_eq!(integrity, "ok");
    // The run counts only if death came in every phase, and often.
    let [granted, completed] = acknowledged;
    println!("{KILLS} kills, {granted} grants and {completed} completions acknowledged");
    assert!(
        granted > KILLS / 4 && completed > KILLS,
        "{granted} grants, {completed} completions"
    );
}

/// A payment without a completion would be made again, a completion without a payment never.
#[test]
fn rows_and_completions_agree_after_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("semel.db");
    let open = || rusqlite::Connection::open(&database).unwrap();
    open()
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE payments (id BLOB NOT NULL UNIQUE)")
        .unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let mut completed = 0;
    for _ in 0..KILLS_WITH_ROWS {
        random = xorshift(random);
        let told = run_and_kill("child_that_is_killed_with_rows", &database, random % 100);
        completed += u32::try_from(told.len()).unwrap();
        let counts: (u32, u32, u32) = open()
            .query_row(
                "SELECT
                    (SELECT count(*) FROM payments),
                    (SELECT count(*) FROM semel_operations WHERE status = 'completed'),
                    (SELECT count(*) FROM payments NATURAL JOIN semel_operations
                     WHERE status = 'completed')",
                [],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .unwrap();
        let (paid, done, both) = counts;
        assert!(
            paid == both && done == both && both >= completed,
            "{counts:?}, {completed} were told"
        );
    }
    println!("{KILLS_WITH_ROWS} kills, {completed} payments acknowledged");
    assert!(completed > KILLS_WITH_ROWS, "{completed} payments");
}

/// Starts the child, kills it once it has said `answers` things, and gives back all it said.
fn run_and_kill(name: &str, database: &Path, answers: u64) -> HashMap<String, Told> {
    let mut child = child(name, database);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut told = HashMap::new();
    let mut killed = false;
    let mut line = String::new();
    loop {
        if !killed && told.len() as u64 >= answers {
            child.kill().unwrap();
            killed = true;
        }
        line.clear();
        // What is in the pipe was said before the kill, and counts. A line cut short does not.
        if lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            break;
        }
        // The test harness has a few words of its own.
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["granted", key] => told.insert(key.to_owned(), Told::Granted),
            ["completed", key] => told.insert(key.to_owned(), Told::Completed),
            _ => None,
        };
    }
    assert!(killed, "the child ended by itself: {:?}", child.wait());
    child.wait().unwrap();
    told
}

async fn verify(store: &Sqlite, key: &str, told: Told) {
    let identity = support::request(key).identity;
    let record = store.find_identity(&identity).await.unwrap();
    let Some(Record {
        state, attempt: 1, ..
    }) = record
    else {
        panic!("{key} was {told:?}, and its record is {record:?}");
    };
    match (told, state) {
        // The answer to the completion may have been lost on the way to us.
        (Told::Granted, State::InProgress(_)) => {}
        (_, State::Completed(completed)) => {
            assert_eq!(completed.response, completion(key, 1024).response);
        }
        (told, state) => panic!("{key} was {told:?}, and is {state:?}"),
    }
}

fn child(name: &str, database: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(DATABASE, database)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: what the killed process does.
#[test]
fn child_that_is_killed() {
    be_killed(work);
}

/// Not a test of its own, either.
#[test]
fn child_that_is_killed_with_rows() {
    be_killed(work_with_rows);
}

fn be_killed<F: Future<Output = ()> + Send + 'static>(work: impl Fn(Sqlite) -> F) {
    let Some(database) = std::env::var_os(DATABASE) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(database).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| tokio::spawn(work(store.clone())))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

async fn work(store: Sqlite) {
    // Far more than a child lives to do, so that a forgotten one ends.
    for _ in 0..10_000 {
        let key = semel_core::OperationId::generate().to_string();
        let fence = granted(&store, &key).await;
        say("granted", &key);
        let held = store.complete(fence, completion(&key, 1024)).await.unwrap();
        assert_eq!(held, Held::Applied);
        say("completed", &key);
    }
}

async fn work_with_rows(store: Sqlite) {
    for _ in 0..10_000 {
        let key = semel_core::OperationId::generate().to_string();
        let fence = granted(&store, &key).await;
        let answer = completion(&key, 1024).response;
        let work = store.transaction(move |connection| {
            let mut pay = connection.prepare_cached("INSERT INTO payments (id) VALUES (?1)")?;
            pay.execute([fence.id.as_bytes()])?;
            Ok::<_, rusqlite::Error>(answer)
        });
        let conclude = |found: Option<Response>| {
            found.map(|response| {
                Word::Complete(Completion {
                    response,
                    resource: None,
                })
            })
        };
        let finished = Box::new(work).finish(fence, Box::new(conclude)).await;
        assert_eq!(finished.unwrap(), Finished::Held(Held::Applied));
        say("completed", &key);
    }
}

fn say(what: &str, key: &str) {
    // One write a line: a kill may cut the last line, and no other.
    std::io::stdout()
        .write_all(format!("{what} {key}\n").as_bytes())
        .unwrap();
}

fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}
