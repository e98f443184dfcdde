//! The ledger of effects: a small append-only HTTP server that all subjects share. `POST /effects`
//! with `{"reference": …}` adds an effect; `GET /effects/count?reference=…` counts them. An effect
//! may name its `operation`: `GET /effects/of/OPERATION` returns it, for a reconciler.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// A request of an adapter has some hundred bytes.
const MAX_BODY: usize = 64 * 1024;
const MAX_LINE: u64 = 16 * 1024;

type Effects = Arc<Mutex<EffectCounts>>;

#[derive(Default)]
struct EffectCounts {
    /// The number of effects of each reference.
    counts: HashMap<String, u64>,
    /// The first effect of each operation, as the reconciler gets it.
    operations: HashMap<String, String>,
}

/// Serves until the process ends.
pub(super) struct Ledger {
    port: u16,
}

impl Ledger {
    pub(super) fn open() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot open the ledger")?;
        let port = listener.local_addr()?.port();
        let effects = Effects::default();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let effects = Arc::clone(&effects);
                // A broken connection is a caller that went away.
                thread::spawn(move || serve(&stream, &effects));
            }
        });
        Ok(Self { port })
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Answers one request after the other, until the connection ends.
fn serve(stream: &TcpStream, effects: &Effects) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if (&mut reader).take(MAX_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let length = body_length(&mut reader)?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, answer) = match answer(&line, &body, effects) {
            Some(answer) => ("200 OK", answer),
            None => ("404 Not Found", "nothing here".to_owned()),
        };
        write!(
            &mut &*stream,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len(),
        )?;
    }
}

/// Reads the head to its end.
fn body_length(reader: &mut BufReader<&TcpStream>) -> Result<usize> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        let read = reader.take(MAX_LINE).read_line(&mut line)?;
        ensure!(read > 0, "the head has no end");
        if line.trim().is_empty() {
            return Ok(length);
        }
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
            ensure!(length <= MAX_BODY, "too large for an effect");
        }
    }
}

fn answer(line: &str, body: &[u8], effects: &Effects) -> Option<String> {
    let mut parts = line.split_whitespace();
    match (parts.next()?, parts.next()?) {
        ("POST", "/effects") => {
            let body: Value = serde_json::from_slice(body).ok()?;
            let reference = body["reference"].as_str()?.to_owned();
            let mut effects = lock(effects);
            if let Some(operation) = body["operation"].as_str() {
                let effect = json!({ "reference": reference, "id": body["id"] }).to_string();
                let first = effects.operations.entry(operation.to_owned());
                first.or_insert(effect);
            }
            *effects.counts.entry(reference).or_default() += 1;
            Some(String::new())
        }
        ("GET", path) => {
            if let Some(operation) = path.strip_prefix("/effects/of/") {
                return lock(effects).operations.get(operation).cloned();
            }
            let reference = path.strip_prefix("/effects/count?reference=")?;
            let count = lock(effects).counts.get(reference).copied();
            Some(count.unwrap_or_default().to_string())
        }
        _ => None,
    }
}

/// A panic leaves the counts consistent.
fn lock(effects: &Effects) -> MutexGuard<'_, EffectCounts> {
    effects.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(stream: &mut BufReader<TcpStream>, request: &str) -> String {
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut status = String::new();
        stream.read_line(&mut status).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        format!("{} {}", &status[9..12], String::from_utf8(body).unwrap())
    }

    #[test]
    fn effects_are_counted_by_their_reference_over_one_connection() {
        let ledger = Ledger::open().unwrap();
        let stream = TcpStream::connect(("127.0.0.1", ledger.port)).unwrap();
        let mut stream = BufReader::new(stream);
        let add = "POST /effects HTTP/1.1\r\nContent-Length: 17\r\n\r\n{\"reference\":\"a\"}";
        let count = |name| format!("GET /effects/count?reference={name} HTTP/1.1\r\n\r\n");
        assert_eq!(ask(&mut stream, &count("a")), "200 0");
        assert_eq!(ask(&mut stream, add), "200 ");
        assert_eq!(ask(&mut stream, add), "200 ");
        assert_eq!(ask(&mut stream, &count("a")), "200 2");
        assert_eq!(ask(&mut stream, &count("b")), "200 0");
        assert_eq!(
            ask(&mut stream, "GET / HTTP/1.1\r\n\r\n"),
            "404 nothing here"
        );
    }

    #[test]
    fn the_effect_of_an_operation_is_found() {
        let effects = Effects::default();
        let find = || answer("GET /effects/of/o-1 HTTP/1.1", b"", &effects);
        assert_eq!(find(), None);
        let first = br#"{"reference": "a", "operation": "o-1", "id": "first"}"#;
        answer("POST /effects HTTP/1.1", first, &effects).unwrap();
        let later = br#"{"reference": "a", "operation": "o-1", "id": "second"}"#;
        answer("POST /effects HTTP/1.1", later, &effects).unwrap();
        assert_eq!(find().unwrap(), r#"{"id":"first","reference":"a"}"#);
    }
}
