//! `semel call`: exit codes, what it prints, and that it is safe to run again.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tempfile::TempDir;

/// Answers one connection after the other, and returns what each sent.
struct Server {
    url: String,
    requests: JoinHandle<Vec<String>>,
}

impl Server {
    fn start(responses: &[String]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/payments", listener.local_addr().unwrap());
        let responses = responses.to_vec();
        let requests = std::thread::spawn(move || {
            responses
                .iter()
                .map(|response| answer(listener.accept().unwrap().0, response))
                .collect()
        });
        Self { url, requests }
    }

    fn requests(self) -> Vec<String> {
        self.requests.join().unwrap()
    }
}

fn answer(mut stream: TcpStream, response: &str) -> String {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        reader.read_line(&mut text).unwrap();
    }
    let length = header(&text, "content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(response.as_bytes()).unwrap();
    text + std::str::from_utf8(&body).unwrap()
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = request.lines().filter_map(|line| line.split_once(": "));
    pairs
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

fn response(status: u16, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} S\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

fn problem(status: u16, code: &str) -> String {
    let body = format!(r#"{{"code":"{code}","retryable":false,"operation_id":"op-1"}}"#);
    response(status, "content-type: application/problem+json\r\n", &body)
}

fn command(home: &Path, url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command
        .args(["call", "--intent", "invoice-7781", "-X", "POST", url])
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .current_dir(home);
    command
}

fn call(home: &Path, url: &str, arguments: &[&str]) -> Output {
    command(home, url, arguments).output().unwrap()
}

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_success_is_printed_and_printed_again_without_a_request() {
    let home = home();
    std::fs::write(home.path().join("body.json"), "{\"amount\": 1}\n").unwrap();
    let server = Server::start(&[response(503, "", ""), response(201, "", "{\"id\":1}")]);
    let url = server.url.clone();
    let credentials = [
        "-H",
        "Authorization: Bearer secret",
        "-H",
        "Private-Token: secret",
    ];
    let arguments = [&["-d", "@body.json"][..], &credentials].concat();
    for _ in 0..2 {
        let output = call(home.path(), &url, &arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(output.stdout, b"{\"id\":1}");
        assert_eq!(output.stderr, b"");
    }
    let requests = server.requests();
    assert_eq!(
        header(&requests[0], "idempotency-key"),
        header(&requests[1], "idempotency-key")
    );
    assert_eq!(
        header(&requests[0], "content-type"),
        Some("application/json")
    );
    assert!(
        requests[1].ends_with("\r\n\r\n{\"amount\": 1}\n"),
        "{requests:?}"
    );
    assert_eq!(header(&requests[1], "private-token"), Some("secret"));
    // In the user's state directory, for this user alone, and without the credentials.
    let journal = std::fs::read(home.path().join(".local/state/semel/journal.db")).unwrap();
    assert!(!journal.windows(6).any(|six| six == b"secret"));
}

#[test]
fn each_end_has_its_exit_code() {
    for (answer, code, printed) in [
        (response(402, "", "declined"), 3, "declined"),
        (
            problem(422, "idempotency_key_reused"),
            3,
            "idempotency_key_reused",
        ),
        (
            problem(410, "idempotency_key_expired"),
            3,
            "idempotency_key_expired",
        ),
        (response(302, "location: /x\r\n", "moved"), 3, "moved"),
        (response(204, "", ""), 0, ""),
    ] {
        let home = home();
        let server = Server::start(&[answer]);
        let output = call(home.path(), &server.url, &[]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.contains(printed), "{out}");
    }
}

#[test]
fn a_response_that_was_too_long_to_be_stored_keeps_its_exit_code() {
    let long = "x".repeat(2 * 1024 * 1024);
    for (status, code) in [(201, 0), (400, 3)] {
        let home = home();
        let server = Server::start(&[response(status, "", &long)]);
        let first = call(home.path(), &server.url, &[]);
        assert_eq!(first.status.code(), Some(code));
        assert_eq!(first.stdout, long.as_bytes());
        let again = call(home.path(), &server.url, &[]);
        assert_eq!(again.status.code(), Some(code), "{again:?}");
        assert_eq!(again.stdout, b"");
        let message = String::from_utf8(again.stderr).unwrap();
        assert!(message.contains("too long to be stored"), "{message}");
        assert_eq!(message.contains("it was executed"), code == 0, "{message}");
    }
}

#[test]
fn an_unknown_outcome_is_code_4_and_the_next_run_has_the_same_key() {
    let home = home();
    let done = response(201, "", "done");
    let server = Server::start(&[problem(504, "idempotency_outcome_unknown"), done]);
    let url = server.url.clone();
    let first = call(home.path(), &url, &["--deadline", "1s"]);
    if first.status.code() == Some(4) {
        let message = String::from_utf8_lossy(&first.stderr).into_owned();
        assert!(message.contains("op-1"), "{message}");
        assert_eq!(call(home.path(), &url, &[]).status.code(), Some(0));
    } else {
        // One time in five the jitter is short enough for a second attempt.
        assert_eq!(first.status.code(), Some(0), "{first:?}");
    }
    let requests = server.requests();
    assert_eq!(
        header(&requests[0], "idempotency-key"),
        header(&requests[1], "idempotency-key")
    );
}

#[test]
fn a_server_that_is_down_is_code_5_and_the_next_run_succeeds() {
    let home = home();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}/payments");
    let output = call(home.path(), &url, &["--deadline", "50ms"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("call again later with the same intent"),
        "{message}"
    );
}

#[test]
fn usage_errors_are_code_2_and_send_nothing() {
    let home = home();
    let server = Server::start(&[response(201, "", "done")]);
    let url = server.url.clone();
    assert_eq!(call(home.path(), &url, &["-d", "1"]).status.code(), Some(0));
    for arguments in [
        vec!["-d", "2"],
        vec!["-d", "@missing.json"],
        vec!["-H", "no header"],
        vec!["-H", "Idempotency-Key: mine"],
        vec!["--deadline", "10"],
    ] {
        let output = call(home.path(), &url, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    assert_eq!(call(home.path(), "payments", &[]).status.code(), Some(2));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_terminal_shows_attempts_and_the_response_stays_alone_on_standard_output() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let home = home();
    let waits = response(409, "retry-after: 1\r\n", "");
    let server = Server::start(&[waits, response(201, "", "done")]);
    let output = command(home.path(), &server.url, &[])
        .stderr(File::from(terminal))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"done");
    let mut seen = Vec::new();
    // Linux returns an error when the last descriptor of the terminal is closed.
    let _ = File::from(master).read_to_end(&mut seen);
    let seen = String::from_utf8(seen).unwrap();
    assert!(
        seen.contains("attempt 1 got status 409, next in 1.0 s"),
        "{seen:?}"
    );
    assert!(seen.ends_with("\r\u{1b}[K"), "{seen:?}");
}

#[test]
fn an_intent_whose_key_expired_is_code_4_until_it_is_forgotten() {
    let home = home();
    let expires = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                   idempotency-key-expires: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let server = Server::start(&[response(503, expires, ""), response(201, "", "done")]);
    let url = server.url.clone();
    // The response itself ends the first run: the next attempt would be too late.
    assert_eq!(call(home.path(), &url, &[]).status.code(), Some(5));
    let over = call(home.path(), &url, &[]);
    assert_eq!(over.status.code(), Some(4), "{over:?}");
    let message = String::from_utf8_lossy(&over.stderr).into_owned();
    assert!(message.contains("then forget the intent"), "{message}");
    let journal = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.arg("call").args(arguments);
        command.env_clear().env("HOME", home.path());
        command.output().unwrap()
    };
    let listed = journal(&["--list"]);
    let lines = String::from_utf8(listed.stdout).unwrap();
    let expected = format!("invoice-7781\tPOST\t{url}\topen, the lifetime of its key is over");
    assert!(lines.starts_with(&expected), "{lines}");
    assert!(journal(&["--forget", "invoice-7781"]).status.success());
    let unknown = journal(&["--forget", "invoice-7781"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert_eq!(journal(&["--list"]).stdout, b"");
    assert_eq!(call(home.path(), &url, &[]).status.code(), Some(0));
    let requests = server.requests();
    assert_ne!(
        header(&requests[0], "idempotency-key"),
        header(&requests[1], "idempotency-key")
    );
}

#[test]
fn a_journal_that_cannot_be_opened_is_code_1() {
    let home = home();
    let output = call(
        home.path(),
        "http://127.0.0.1:9/",
        &["--journal", "missing/journal.db"],
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
