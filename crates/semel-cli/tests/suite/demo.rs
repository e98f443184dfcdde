//! `semel demo`: what it prints, how it ends, and why it does not start.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A running demo, killed when dropped.
struct Demo {
    child: Child,
    /// Everything that it printed at start.
    printed: String,
    temporary: TempDir,
}

fn command(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command
        .args(["demo", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
        .args(args)
        .env_clear()
        .env("TMPDIR", temporary);
    command
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = command(temporary.path(), args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !printed.contains("Ctrl-C") {
            let read = lines.read_line(&mut printed).unwrap();
            assert_ne!(read, 0, "the demo ended: {printed}");
        }
        Self {
            child,
            printed,
            temporary,
        }
    }

    /// The commands to try, without the labels before them.
    fn commands(&self) -> Vec<&str> {
        let command = |line| {
            let curl = str::find(line, "curl ");
            let semel = str::contains(line, " operations list ").then_some(0);
            curl.or(semel).map(|start| &line[start..])
        };
        self.printed.lines().filter_map(command).collect()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shell(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().unwrap()
}

#[test]
fn every_printed_command_runs_as_printed() {
    if !shell("command -v curl").status.success() {
        println!("SKIPPED: curl is not installed");
        return;
    }
    let demo = Demo::start(&[]);
    let commands = demo.commands();
    assert_eq!(commands.len(), 7, "{}", demo.printed);
    for command in commands {
        let output = shell(command);
        assert!(output.status.success(), "{command}: {output:?}");
    }
}

#[test]
fn hangup_ends_the_demo_and_removes_its_temporary_data() {
    let mut demo = Demo::start(&[]);
    assert!(
        demo.printed.contains("The data is removed at exit"),
        "{}",
        demo.printed
    );
    let files = || fs::read_dir(demo.temporary.path()).unwrap().count();
    assert_eq!(files(), 1);
    kill_process(Pid::from_child(&demo.child), Signal::HUP).unwrap();
    let status = demo.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(fs::read_dir(demo.temporary.path()).unwrap().count(), 0);
}

#[test]
fn data_in_a_given_directory_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let mut demo = Demo::start(&["--data", data]);
    let stays = format!("The data stays in {data}.");
    assert!(demo.printed.contains(&stays), "{}", demo.printed);
    kill_process(Pid::from_child(&demo.child), Signal::TERM).unwrap();
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
    assert!(directory.path().join("semel.db").exists());
}

#[test]
fn an_address_in_use_is_reported_once_with_the_flag_that_helps() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    for flag in ["--listen", "--admin-listen"] {
        let other = match flag {
            "--listen" => "--admin-listen=127.0.0.1:0",
            _ => "--listen=127.0.0.1:0",
        };
        let output = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["demo", other, flag, &address.to_string()])
            .env_clear()
            .env("TMPDIR", temporary.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        for part in [
            format!("cannot listen on {address}"),
            "Address already in use".to_owned(),
            format!("another address with {flag} "),
        ] {
            assert_eq!(error.matches(&part).count(), 1, "{part:?} in {error}");
        }
    }
}
