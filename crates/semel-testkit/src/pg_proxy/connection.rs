//! One proxied connection.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::wire::{Asked, Batch, CANCEL_REQUEST, GSS_REQUEST, Message, SSL_REQUEST};
use super::{Point, Shared, Step};

/// Forwards until one side ends or a plan cuts. Dropping the streams cuts both sides.
pub(super) async fn run(client: TcpStream, server: TcpStream, number: usize, shared: &Shared) {
    for stream in [&client, &server] {
        // Small messages back and forth: waiting to fill a packet would slow every test.
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (mut from_client, mut to_client) = (BufReader::new(from_client), to_client);
    let mut to_server = to_server;
    let begun = begin(&mut from_client, &mut to_client, &mut to_server).await;
    if !matches!(begun, Ok(true)) {
        return;
    }
    let asked = Mutex::default();
    tokio::select! {
        _ = forward(from_client, to_server, number, &asked, shared) => {}
        _ = answer(BufReader::new(from_server), to_client, number, &asked, shared) => {}
    }
}

/// Forwards the startup messages. Returns whether a session follows.
async fn begin(
    from_client: &mut BufReader<OwnedReadHalf>,
    to_client: &mut OwnedWriteHalf,
    to_server: &mut OwnedWriteHalf,
) -> io::Result<bool> {
    loop {
        let message = Message::read_startup(from_client).await?;
        match message.startup_code() {
            Some(SSL_REQUEST | GSS_REQUEST) => to_client.write_all(b"N").await?,
            code => {
                to_server.write_all(&message.bytes).await?;
                return Ok(code != Some(CANCEL_REQUEST));
            }
        }
    }
}

/// From the client to the server.
async fn forward(
    mut from: BufReader<OwnedReadHalf>,
    mut to: OwnedWriteHalf,
    number: usize,
    asked: &Mutex<Asked>,
    shared: &Shared,
) -> io::Result<()> {
    while let Some(message) = Message::read(&mut from).await? {
        // Before it is forwarded, so that an answer never comes to an unknown question.
        let executes = lock(asked).note(&message);
        if let Some(sql) = executes {
            if !shared.goes_on(number, Step::Before(&sql)) {
                return Ok(());
            }
            let fired = shared.fire(|point| match point {
                Point::Before(text) => usize::from(sql.contains(text)),
                Point::Answered(_) | Point::Completed(_) => 0,
            });
            if let Some(action) = fired
                && !action.perform().await
            {
                return Ok(());
            }
        }
        shared.thawed().await;
        to.write_all(&message.bytes).await?;
    }
    Ok(())
}

/// From the server to the client. While a plan waits for a reply, replies are forwarded only when
/// they are complete.
async fn answer(
    mut from: BufReader<OwnedReadHalf>,
    mut to: OwnedWriteHalf,
    number: usize,
    asked: &Mutex<Asked>,
    shared: &Shared,
) -> io::Result<()> {
    let mut answer = Answer::default();
    while let Some(message) = Message::read(&mut from).await? {
        answer.note(&message);
        if message.kind == b'Z' {
            let batch = lock(asked).ready();
            let ended = std::mem::take(&mut answer);
            if let Some(batch) = &batch
                && !batch.executed.is_empty()
                && !ended.failed
                && !shared.goes_on(number, Step::Answered(&batch.executed))
            {
                return Ok(());
            }
            if let Some(batch) = batch
                && let Some(action) = ended.fires(&batch, shared)
                && !action.perform().await
            {
                return Ok(());
            }
            shared.thawed().await;
            to.write_all(&ended.kept_back).await?;
            continue;
        }
        let waits = lock(asked).may_keep_back() && !answer.wants_data;
        if !(waits && shared.watches_answers()) {
            shared.thawed().await;
            to.write_all(&std::mem::take(&mut answer.kept_back)).await?;
        }
    }
    Ok(())
}

/// The server's messages since its last `ReadyForQuery`.
#[derive(Default)]
struct Answer {
    kept_back: Vec<u8>,
    tags: Vec<String>,
    failed: bool,
    committed: bool,
    /// The server waits for the client in the middle of a reply.
    wants_data: bool,
}

impl Answer {
    fn note(&mut self, message: &Message) {
        self.kept_back.extend(&message.bytes);
        match message.kind {
            // CommandComplete
            b'C' => self.tags.push(message.text() + "\0"),
            // ErrorResponse
            b'E' => self.failed = true,
            // ReadyForQuery: `I` is outside of a transaction, so what was done is committed.
            b'Z' => self.committed = message.bytes.last() == Some(&b'I'),
            // CopyInResponse, CopyBothResponse
            b'G' | b'W' => self.wants_data = true,
            _ => {}
        }
    }

    /// The action for a complete reply. An error reply triggers nothing: nothing was committed.
    fn fires(&self, batch: &Batch, shared: &Shared) -> Option<super::Action> {
        if self.failed {
            return None;
        }
        shared.fire(|point| match point {
            Point::Before(_) => 0,
            Point::Answered(text) => {
                let contains = |sql: &&std::sync::Arc<str>| sql.contains(text);
                batch.executed.iter().filter(contains).count()
            }
            Point::Completed(_) if !self.committed => 0,
            Point::Completed(tag) => {
                let begins = |completed: &&String| completed.starts_with(tag);
                self.tags.iter().filter(begins).count()
            }
        })
    }
}

fn lock(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}
