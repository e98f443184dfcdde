//! What a process did to its files, from the output of `strace`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A write of this size would be cut off in the trace, and the test fails.
const LONGEST_WRITE: &str = "1048576";

/// The calls that change what a power loss leaves behind. A change by any other call would go
/// unnoticed, so those that SQLite and the standard library could use as well are traced and refused.
const CALLS: &str = "openat,open,creat,lseek,write,pwrite64,ftruncate,fsync,fdatasync,unlink,\
                     unlinkat,writev,pwritev,pwritev2,fallocate,truncate,rename,renameat,renameat2,\
                     link,linkat,sync_file_range,copy_file_range,sendfile,splice";

/// One change, or one promise of the system, in the order in which they happened.
#[derive(Debug)]
pub(super) enum Event {
    /// A file was opened that may have to be created.
    Open(PathBuf),
    Remove(PathBuf),
    Write {
        path: PathBuf,
        offset: usize,
        data: Vec<u8>,
    },
    Truncate {
        path: PathBuf,
        length: usize,
    },
    /// What was written before is on the disk once the thread's [`Event::SyncEnd`] has come.
    SyncBegin {
        thread: u32,
        path: PathBuf,
    },
    SyncEnd {
        thread: u32,
        path: PathBuf,
    },
}

/// `program` under `strace`, which writes to `output`.
pub(super) fn traced(program: &Path, output: &Path) -> Command {
    let mut command = Command::new("strace");
    command
        .args(["--follow-forks", "--seccomp-bpf", "--decode-fds=path"])
        .args(["--quiet=all", "--strings-in-hex=all"])
        .args(["--string-limit", LONGEST_WRITE])
        .args(["--trace", CALLS])
        .arg("--output")
        .arg(output)
        .arg(program);
    command
}

/// The events in files below `directory`.
pub(super) fn parse(text: &str, directory: &Path) -> Vec<Event> {
    let mut parser = Parser::default();
    for line in text.lines() {
        parser.read(line);
    }
    let mut events = parser.events;
    events.retain(|event| event.path().starts_with(directory));
    events
}

impl Event {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Open(path)
            | Self::Remove(path)
            | Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::SyncBegin { path, .. }
            | Self::SyncEnd { path, .. } => path,
        }
    }
}

#[derive(Default)]
struct Parser {
    events: Vec<Event>,
    /// The first halves of calls during which another thread made one.
    unfinished: HashMap<u32, String>,
    /// Where the next `write` goes, by file descriptor.
    positions: HashMap<String, usize>,
}

impl Parser {
    fn read(&mut self, line: &str) {
        let (thread, call) = line.split_once(' ').expect("a thread and a call");
        let (thread, call) = (thread.parse().expect("a thread"), call.trim_start());
        if call.starts_with("+++") || call.starts_with("---") {
            return;
        }
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            if is_sync(begun) {
                let path = descriptor(begun).1;
                self.events.push(Event::SyncBegin { thread, path });
            }
            self.unfinished.insert(thread, begun.trim_end().to_owned());
        } else if let Some(rest) = call.strip_prefix("<... ") {
            let (_, rest) = rest.split_once(" resumed>").expect("the rest of a call");
            let begun = self.unfinished.remove(&thread).expect("its beginning");
            self.end(thread, &format!("{begun}{rest}"));
        } else {
            if is_sync(call) {
                let path = descriptor(call).1;
                self.events.push(Event::SyncBegin { thread, path });
            }
            self.end(thread, call);
        }
    }

    /// A change counts from the end of its call: a sync that began before may not include it.
    fn end(&mut self, thread: u32, call: &str) {
        let (call, result) = call.rsplit_once(" = ").expect("a result");
        let Some(result) = number(result) else {
            return; // It failed, or the process ended.
        };
        let call = call.trim_end().trim_end_matches(')');
        let (name, arguments) = call.split_once('(').expect("arguments");
        let last = || arguments.rsplit(", ").next().and_then(number);
        let event = match name {
            "openat" | "open" | "creat" => {
                self.positions.remove(&result.to_string());
                let ours = arguments.contains(&hex("semel.db"));
                assert!(
                    !(ours && call.contains("O_TRUNC")),
                    "not understood: {call}"
                );
                Event::Open(path(arguments))
            }
            "unlink" | "unlinkat" => Event::Remove(path(arguments)),
            "lseek" => {
                self.positions.insert(descriptor(call).0, result);
                return;
            }
            "write" | "pwrite64" => {
                let (descriptor, path) = descriptor(call);
                let mut data = quoted(arguments);
                data.truncate(result);
                assert_eq!(data.len(), result, "the trace has not all of a write");
                let offset = if name == "pwrite64" {
                    last().expect("an offset")
                } else {
                    let position = self.positions.entry(descriptor).or_default();
                    *position += result;
                    *position - result
                };
                Event::Write { path, offset, data }
            }
            "ftruncate" => Event::Truncate {
                path: descriptor(call).1,
                length: last().expect("a length"),
            },
            "fsync" | "fdatasync" => Event::SyncEnd {
                thread,
                path: descriptor(call).1,
            },
            other => {
                // Of other files, such as a pipe of the test harness, it does not matter.
                assert!(!call.contains(&hex("semel.db")), "not understood: {other}");
                return;
            }
        };
        self.events.push(event);
    }
}

fn is_sync(call: &str) -> bool {
    call.starts_with("fsync(") || call.starts_with("fdatasync(")
}

/// The first argument: a number, and the path that it stands for.
fn descriptor(call: &str) -> (String, PathBuf) {
    let (_, arguments) = call.split_once('(').expect("arguments");
    let (number, rest) = arguments.split_once('<').unwrap_or((arguments, ">"));
    let (path, rest) = rest.split_once('>').expect("the end of a path");
    let mut path = unhex(path);
    // A file without a name cannot be found after a power loss.
    if rest.starts_with("(deleted)") {
        path.extend(b" (deleted)");
    }
    (number.to_owned(), to_path(path))
}

/// The path among the arguments, which is absolute.
fn path(arguments: &str) -> PathBuf {
    to_path(quoted(arguments))
}

fn to_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(String::from_utf8(bytes).expect("a path in UTF-8"))
}

fn quoted(arguments: &str) -> Vec<u8> {
    let (_, text) = arguments.split_once('"').expect("a string");
    let (text, _) = text.split_once('"').expect("the end of a string");
    unhex(text)
}

/// `\x2f` for each byte.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        other => panic!("not a hexadecimal digit: {other}"),
    };
    let bytes = text.as_bytes().chunks_exact(4);
    bytes
        .map(|byte| digit(byte[2]) << 4 | digit(byte[3]))
        .collect()
}

fn hex(text: &str) -> String {
    let bytes = text.bytes().map(|byte| format!("\\x{byte:02x}"));
    bytes.collect::<Vec<_>>().concat()
}

/// The number that a text begins with.
fn number(text: &str) -> Option<usize> {
    let digits = text.trim_start();
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}
