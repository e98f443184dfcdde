//! The clients for Python and Node, as `cargo xtask test` built and installed them: their types, their
//! own tests, which run the scenarios of `packages/scenarios`, and what they have on the disk when they
//! send.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use semel_testkit::database::Database;
use tempfile::TempDir;
use tokio::task::block_in_place;

const PYTHON: &str = "SEMEL_PYTHON_CLIENT";
const NODE: &str = "SEMEL_NODE_CLIENT";
const ORDER: &str = "{\"amount\":1000}";

fn package(name: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    crates.join("../../packages").join(name)
}

/// Where a package is installed; prints `SKIPPED` if it is not.
fn installed(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).filter(|path| !path.is_empty());
    if path.is_none() {
        println!("SKIPPED: {variable} is not set; `cargo xtask test` installs what it names");
    }
    path.map(PathBuf::from)
}

/// Runs a command to its end, and passes its output on.
fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("the variable names a program that starts");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    print!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}", output.status);
}

fn python(interpreter: &Path) -> Command {
    let mut command = Command::new(interpreter);
    // Beside the interpreter: most of mypy's time goes into the types of the standard library.
    let cache = interpreter.with_file_name("mypy-cache");
    command
        .current_dir(package("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MYPY_CACHE_DIR", cache);
    command
}

/// The files of the Node package that are not published, beside what it was installed into: Node looks
/// for modules beside the real path of a file.
fn node_directory(tools: &Path) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    symlink(tools.join("node_modules"), at("node_modules")).unwrap();
    std::fs::copy(package("node/README.md"), at("README.md")).unwrap();
    for name in ["test", "examples"] {
        std::fs::create_dir(at(name)).unwrap();
        for file in std::fs::read_dir(package("node").join(name)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), at(name).join(file.file_name())).unwrap();
        }
    }
    directory
}

#[test]
fn python_package_has_strict_types() {
    let Some(interpreter) = installed(PYTHON) else {
        return;
    };
    let mypy = ["-m", "mypy", "--strict"];
    run(python(&interpreter).args(mypy).args(["-p", "semel"]));
    run(python(&interpreter).args(mypy));
}

#[tokio::test(flavor = "multi_thread")]
async fn python_package_passes_its_tests() {
    let Some(interpreter) = installed(PYTHON) else {
        return;
    };
    let Some(database) = Database::new().await else {
        return;
    };
    let mut tests = python(&interpreter);
    tests
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
        .env("DATABASE_URL", &database.url);
    block_in_place(|| run(&mut tests));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_package_passes_its_tests() {
    let Some(tools) = installed(NODE) else {
        return;
    };
    let Some(database) = Database::new().await else {
        return;
    };
    let directory = node_directory(&tools);
    let mut tests = Command::new("node");
    tests
        .current_dir(directory.path())
        // A test that hangs fails with its name. A file with all its kills takes a minute where many programs run.
        .args(["--test", "--test-timeout=180000", "--test-reporter=spec"])
        .args(["client", "journals", "scenarios"].map(|name| format!("test/{name}.test.mjs")))
        .env("DATABASE_URL", &database.url)
        .env("SEMEL_SCENARIOS", package("scenarios/client.json"));
    block_in_place(|| run(&mut tests));
}

#[test]
fn python_client_has_its_key_on_the_disk_before_it_connects() {
    let Some(interpreter) = installed(PYTHON) else {
        return;
    };
    let pay = package("python/examples/pay.py");
    let output = assert_synced_before_connecting("journal", |url, journal| {
        pay_command([interpreter.as_os_str(), pay.as_os_str()], url, journal)
    });
    assert_eq!(output, "{}\n");
}

#[test]
fn node_client_has_its_key_on_the_disk_before_it_connects() {
    let Some(tools) = installed(NODE) else {
        return;
    };
    let directory = node_directory(&tools);
    let pay = directory.path().join("examples/pay.mjs");
    let output = assert_synced_before_connecting("journal", |url, journal| {
        pay_command(["node".as_ref(), pay.as_os_str()], url, journal)
    });
    assert_eq!(output, "{}\n");
}

/// Also the directories that it creates.
#[test]
fn semel_call_has_its_key_on_the_disk_before_it_connects() {
    let output = assert_synced_before_connecting(".local/state/semel/journal.db", |url, _| {
        let semel = env!("CARGO_BIN_EXE_semel");
        let call = [semel, "call", "--intent", "invoice-7781", url, "-d", ORDER];
        call.map(OsString::from).to_vec()
    });
    assert_eq!(output, "{}");
}

fn pay_command(program: [&OsStr; 2], url: &str, journal: &Path) -> Vec<OsString> {
    let arguments = [url.as_ref(), "invoice-7781".as_ref(), journal.as_os_str()];
    let words = program.into_iter().chain(arguments);
    words
        .chain([OsStr::new(ORDER)])
        .map(OsStr::to_owned)
        .collect()
}

/// The languages share the journal's file, and what identifies a request.
#[test]
fn python_client_returns_what_semel_call_stored() {
    let Some(interpreter) = installed(PYTHON) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/payments", listener.local_addr().unwrap());
    // Nothing listens after the first answer.
    let server = thread::spawn(move || answer_once(&listener));
    let mut first = Command::new(env!("CARGO_BIN_EXE_semel"));
    first
        .args(["call", "--intent", "invoice-7781", "-X", "POST", &url])
        .args(["-d", ORDER, "--journal"])
        .arg(&journal);
    let first = first.output().unwrap();
    assert_eq!(first.stdout, b"{}", "{first:?}");
    server.join().unwrap();
    let mut again = python(&interpreter);
    again
        .arg(package("python/examples/pay.py"))
        .args([&url, "invoice-7781"])
        .arg(&journal)
        .arg(ORDER);
    let again = again.output().unwrap();
    assert_eq!(again.stdout, b"{}\n", "{again:?}");
}

/// Records the system calls of a payment, whose journal is in a directory that is also its home, and returns what it printed.
fn assert_synced_before_connecting(
    journal: &str,
    command: impl FnOnce(&str, &Path) -> Vec<OsString>,
) -> String {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || answer_once(&listener));
    let mut traced = Command::new("strace");
    traced
        .args(["--follow-forks", "--seccomp-bpf", "--decode-fds=path"])
        .args(["--quiet=all", "--string-limit", "300", "--trace"])
        .arg("write,writev,pwrite64,pwritev,fsync,fdatasync,connect,mkdir")
        .arg("--output")
        .arg(&trace)
        .args(command(
            &format!("http://127.0.0.1:{port}/payments"),
            &directory.path().join(journal),
        ))
        .env("HOME", directory.path())
        .env_remove("XDG_STATE_HOME")
        .stdin(Stdio::null());
    let Ok(output) = traced.output() else {
        println!("SKIPPED: strace is not installed");
        // What a client prints, as if it had.
        return if journal == "journal" { "{}\n" } else { "{}" }.to_owned();
    };
    assert!(output.status.success(), "{output:?}");
    server.join().unwrap();
    let trace = std::fs::read_to_string(trace).unwrap();
    let journal = directory.path().join(journal).display().to_string();
    assert!(
        is_synced_before_connecting(&trace, &journal, port),
        "{trace}"
    );
    assert_eq!(unsynced_directories(&trace), Vec::<&str>::new(), "{trace}");
    String::from_utf8(output.stdout).unwrap()
}

/// The directories that were created, and whose names were not synced.
fn unsynced_directories(trace: &str) -> Vec<&str> {
    let created = trace.lines().enumerate().filter_map(|(nth, line)| {
        let (_, path) = line.split_once("mkdir(\"")?;
        let path = path.split('"').next()?;
        line.ends_with("= 0").then_some((nth, path))
    });
    let is_synced = |(nth, path): &(usize, &str)| {
        let parent = Path::new(path).parent().unwrap().display().to_string();
        let directory = format!("<{parent}>)");
        let mut later = trace.lines().skip(*nth);
        later.any(|line| {
            line.contains("sync(") && line.contains(&directory) && line.ends_with("= 0")
        })
    };
    let unsynced = created.filter(|created| !is_synced(created));
    unsynced.map(|(_, path)| path).collect()
}

/// Whether the journal was written, and everything in it synced, when the client connected.
fn is_synced_before_connecting(trace: &str, journal: &str, port: u16) -> bool {
    let (mut is_written, mut is_dirty) = (false, false);
    let mut syncing = None;
    for line in trace.lines() {
        let (thread, call) = line.split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        let name = call.split('(').next().unwrap_or_default();
        let is_journal = call.contains(journal);
        if name.contains("write") && is_journal {
            (is_written, is_dirty) = (true, true);
        } else if name.ends_with("sync") && is_journal && call.ends_with("<unfinished ...>") {
            syncing = Some(thread);
        } else if name.ends_with("sync") && is_journal
            || call.contains("sync resumed>") && syncing == Some(thread)
        {
            is_dirty &= !call.ends_with("= 0");
        } else if name == "connect" && call.contains(&format!("htons({port})")) {
            return is_written && !is_dirty;
        }
    }
    panic!("the client did not connect");
}

#[test]
fn a_journal_that_is_not_synced_is_noticed() {
    let check = |trace: &str| is_synced_before_connecting(trace, "/tmp/journal", 80);
    let write = "7 write(3</tmp/journal>, \"a\"..., 9) = 9";
    let sync = "7 fdatasync(3</tmp/journal>) = 0";
    let other = "7 fdatasync(3</tmp/another>) = 0";
    let connect = "7 connect(4, {sin_port=htons(80)}) = 0";
    let split = "7 fsync(3</tmp/journal> <unfinished ...>\n7 <... fsync resumed>) = 0";
    assert!(check(&[write, sync, connect].join("\n")));
    assert!(check(&[write, split, connect].join("\n")));
    assert!(!check(&[write, other, connect].join("\n")));
    assert!(!check(&[write, connect, sync].join("\n")));
    assert!(!check(&[write, sync, write, connect].join("\n")));
    assert!(!check(connect));
}

/// Answers one request; its body is in its last packet.
fn answer_once(listener: &TcpListener) {
    let (mut connection, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.ends_with(ORDER.as_bytes()) {
        let read = connection.read(&mut buffer).unwrap();
        assert!(read > 0, "the request ended early");
        request.extend_from_slice(&buffer[..read]);
    }
    let response = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    connection.write_all(response.as_bytes()).unwrap();
}
