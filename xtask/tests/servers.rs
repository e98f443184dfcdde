//! `cargo xtask servers`, including its signal handling.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// A termination signal must not leave a server behind.
#[test]
fn a_terminated_run_stops_its_servers() {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args([
            "servers",
            "--no-install",
            "--with",
            "postgres",
            "--",
            "sleep",
            "120",
        ])
        .env_remove("SEMEL_TEST_POSTGRES_URL")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    let mut port = None;
    for line in BufReader::new(xtask.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, address)) = line.split_once("127.0.0.1:") {
            port = address.split('/').next().unwrap().parse::<u16>().ok();
        }
        if line.starts_with("$ sleep") {
            break;
        }
    }
    let Some(port) = port else {
        assert!(!xtask.wait().unwrap().success());
        println!("SKIPPED: Postgres is not installed");
        return;
    };
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

    let asked = Command::new("sh")
        .args(["-c", "kill -s TERM \"$1\"", "sh", &xtask.id().to_string()])
        .status()
        .unwrap();
    assert!(asked.success());
    assert!(!xtask.wait().unwrap().success());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
