//! Clients that are killed with SIGKILL, and started again over the same file.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use semel_client::{Client, Journal, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

const JOURNAL: &str = "SEMEL_CRASH_JOURNAL";
const URL: &str = "SEMEL_CRASH_URL";

/// The process that is killed; does nothing in an ordinary run.
#[tokio::test]
async fn child() {
    let (Ok(journal), Ok(url)) = (std::env::var(JOURNAL), std::env::var(URL)) else {
        return;
    };
    let journal = Journal::sqlite(journal).unwrap();
    let client = Client::builder(journal).build().unwrap();
    let request = Request::post(&url).unwrap().json("{}");
    let response = client.call("invoice-1", request).await.unwrap();
    println!("body={}", String::from_utf8_lossy(&response.body));
}

fn start(journal: &Path, url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["crash::child", "--exact", "--nocapture"])
        .env(JOURNAL, journal)
        .env(URL, url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The next request's key.
async fn receive(listener: &TcpListener) -> (TcpStream, String) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n{}") {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
    }
    let head = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
    let key = head
        .lines()
        .find(|line| line.starts_with("idempotency-key"));
    (stream, key.unwrap().to_owned())
}

async fn respond(mut stream: TcpStream) {
    let response = b"HTTP/1.1 201 C\r\nconnection: close\r\ncontent-length: 4\r\n\r\ndone";
    stream.write_all(response).await.unwrap();
    let _ = stream.shutdown().await;
    // Until the client has read it, or is dead.
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

async fn is_done(child: Child) -> bool {
    let output = child.wait_with_output().await.unwrap();
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("body=done")
}

#[tokio::test]
async fn a_client_killed_while_it_waits_sends_the_same_key_again() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal.db");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut keys = Vec::new();
    for _ in 0..3 {
        let mut child = start(&journal, &url);
        let (_stream, key) = receive(&listener).await;
        child.kill().await.unwrap();
        keys.push(key);
    }
    let child = start(&journal, &url);
    let (stream, key) = receive(&listener).await;
    respond(stream).await;
    assert!(is_done(child).await);
    keys.push(key);
    keys.dedup();
    assert_eq!(keys.len(), 1);
    // Finished: no request.
    drop(listener);
    assert!(is_done(start(&journal, &url)).await);
}

#[tokio::test]
async fn a_client_killed_after_the_response_ends_with_that_response() {
    for delay in [0, 1, 3] {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("journal.db");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let mut child = start(&journal, &url);
        let (stream, first) = receive(&listener).await;
        respond(stream).await;
        // sleeps because the child may be anywhere between the response and its commit.
        tokio::time::sleep(Duration::from_millis(delay)).await;
        let _ = child.start_kill();
        let _ = child.wait().await;
        let again = start(&journal, &url);
        let answering = async {
            let (stream, key) = receive(&listener).await;
            assert_eq!(key, first);
            respond(stream).await;
            std::future::pending::<bool>().await
        };
        tokio::select! {
            done = is_done(again) => assert!(done),
            _ = answering => {}
        }
    }
}

#[tokio::test]
async fn two_processes_at_once_send_one_key() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal.db");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let children = [start(&journal, &url), start(&journal, &url)];
    let (one, first) = receive(&listener).await;
    let (two, second) = receive(&listener).await;
    assert_eq!(first, second);
    tokio::join!(respond(one), respond(two));
    for child in children {
        assert!(is_done(child).await);
    }
}
