//! A killed process loses nothing that was acknowledged.
//!
//! The test starts itself again as a child that reserves and completes as fast as it can
//! and prints a line on its standard output *after* each answer; it is killed with SIGKILL in the
//! middle of that, hundreds of times, over one and the same file. Another child completes
//! together with rows of its own; after each kill the two agree.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{completion, granted};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::Held;
use semel_core::{Completion, Record, Response, State, Store, Transaction};
use semel_sqlite::Sqlite;

/// How often the child is killed.
const KILLS: u64 = 300;

/// How often the child is killed that writes rows of its own.
const KILLS_WITH_ROWS: u32 = 60;

/// Executions under way at once in the child, so that commits are groups.
const TASKS: usize = 8;

const DATABASE: &str = "SEMEL_CRASH_TEST_DATABASE";

/// The last write of a key that the store acknowledged before the child was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Acknowledged {
    Granted,
    Completed,
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("semel.db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut random = 0x2545_f491_4f6c_dd1d;
    let mut acknowledged = [0, 0];
    for kill in 0..KILLS {
        // The first dies before it has opened the file, others after a few hundred answers.
        random = xorshift(random);
        let answers = if kill == 0 { 0 } else { random % 300 };
        let acked = run_and_kill("crash::child_process", &database, answers);
        runtime.block_on(async {
            let store = Sqlite::open(&database).await.unwrap();
            for (key, acked) in &acked {
                verify(&store, key, *acked).await;
                acknowledged[*acked as usize] += 1;
            }
        });
    }
    let integrity: String = rusqlite::Connection::open(&database)
        .unwrap()
        .pragma_query_value(None, "integrity_check", |row| row.get(0))
        .unwrap();
    assert_eq!(integrity, "ok");
    // The run counts only if kills hit every phase, and often.
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
        let acked = run_and_kill("crash::child_process_with_rows", &database, random % 100);
        completed += u32::try_from(acked.len()).unwrap();
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
            "{counts:?}, {completed} acknowledged"
        );
    }
    println!("{KILLS_WITH_ROWS} kills, {completed} payments acknowledged");
    assert!(completed > KILLS_WITH_ROWS, "{completed} payments");
}

/// Starts the child, kills it once it has printed `answers` lines, and returns all lines.
fn run_and_kill(name: &str, database: &Path, answers: u64) -> HashMap<String, Acknowledged> {
    let mut child = child(name, database);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut acked = HashMap::new();
    let mut killed = false;
    let mut line = String::new();
    loop {
        if !killed && acked.len() as u64 >= answers {
            child.kill().unwrap();
            killed = true;
        }
        line.clear();
        // Lines in the pipe were printed before the kill, and count. A truncated line does not.
        if lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            break;
        }
        // The test harness prints lines of its own.
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["granted", key] => acked.insert(key.to_owned(), Acknowledged::Granted),
            ["completed", key] => acked.insert(key.to_owned(), Acknowledged::Completed),
            _ => None,
        };
    }
    assert!(killed, "the child ended by itself: {:?}", child.wait());
    child.wait().unwrap();
    acked
}

async fn verify(store: &Sqlite, key: &str, acked: Acknowledged) {
    let identity = crate::support::request(key).identity;
    let record = store.find_identity(&identity).await.unwrap();
    let Some(Record {
        state, attempt: 1, ..
    }) = record
    else {
        panic!("{key} was {acked:?}, and its record is {record:?}");
    };
    match (acked, state) {
        // The answer to the completion may have been lost on the way to us.
        (Acknowledged::Granted, State::InProgress(_)) => {}
        (_, State::Completed(completed)) => {
            assert_eq!(completed.response, completion(key, 1024).response);
        }
        (acked, state) => panic!("{key} was {acked:?}, and is {state:?}"),
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

/// Not a test: the body of the child process that is killed.
#[test]
fn child_process() {
    be_killed(work);
}

/// Not a test: the body of the child process that writes rows.
#[test]
fn child_process_with_rows() {
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
    // More than a child completes before its kill, so that an orphan ends.
    for _ in 0..10_000 {
        let key = semel_core::OperationId::generate().to_string();
        let fence = granted(&store, &key).await;
        print_line("granted", &key);
        let held = store.complete(fence, completion(&key, 1024)).await.unwrap();
        assert_eq!(held, Held::Applied);
        print_line("completed", &key);
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
                TransactionWrite::Complete(Completion {
                    response,
                    resource: None,
                })
            })
        };
        let finished = Box::new(work).finish(fence, Box::new(conclude)).await;
        assert_eq!(finished.unwrap(), Finished::Held(Held::Applied));
        print_line("completed", &key);
    }
}

fn print_line(event: &str, key: &str) {
    // One write a line: a kill may cut the last line, and no other.
    std::io::stdout()
        .write_all(format!("{event} {key}\n").as_bytes())
        .unwrap();
}

pub(crate) fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}
