//! PostgreSQL's messages, as far as a proxy has to understand them: protocol 3, see "Message
//! Formats" in its manual.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Longest message. A test sends nothing near it; what claims to be longer is not a message.
const MAX_MESSAGE: usize = 64 << 20;

/// The codes that stand where a startup message has its protocol version.
pub(super) const SSL_REQUEST: u32 = 80_877_103;
pub(super) const GSS_REQUEST: u32 = 80_877_104;
pub(super) const CANCEL_REQUEST: u32 = 80_877_102;

/// One message, as it came.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The letter; 0 for a startup message, which has none.
    pub(super) kind: u8,
    pub(super) bytes: Vec<u8>,
}

/// Requests of a client without a reply yet.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// SQL by the name of a prepared statement.
    statements: HashMap<Vec<u8>, Arc<str>>,
    /// SQL by the name of a portal.
    portals: HashMap<Vec<u8>, Arc<str>>,
    /// Not yet closed by a Sync.
    open: Batch,
    /// Each of these ends with one `ReadyForQuery`, in order.
    closed: VecDeque<Batch>,
}

/// The statements up to one Sync, or of one simple query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    /// The SQL of everything that is executed in it, in order.
    pub(super) executed: Vec<Arc<str>>,
    begun: bool,
    /// The client waits for replies before it continues.
    flushed: bool,
}

impl Message {
    /// The next message with a letter; `None` at the end of the stream.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let kind = match from.read_u8().await {
            Ok(kind) => kind,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![kind];
        read_rest(from, &mut bytes).await?;
        Ok(Some(Self { kind, bytes }))
    }

    /// The next message without a letter: how a client begins.
    pub(super) async fn read_startup(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut bytes = Vec::new();
        read_rest(from, &mut bytes).await?;
        Ok(Self { kind: 0, bytes })
    }

    /// The version that a startup message asks for, or one of the codes in its place.
    pub(super) fn startup_code(&self) -> Option<u32> {
        let code = self.bytes.get(4..8)?;
        Some(u32::from_be_bytes(code.try_into().ok()?))
    }

    /// The strings of a message that begins with strings.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let content = self.bytes.get(5..).unwrap_or_default();
        content.split(|byte| *byte == 0)
    }

    /// Its first string, as text.
    pub(super) fn text(&self) -> String {
        let text = self.texts().next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

async fn read_rest(from: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<()> {
    let length = from.read_u32().await?;
    let content = (length as usize)
        .checked_sub(4)
        .filter(|content| *content <= MAX_MESSAGE)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a message"))?;
    bytes.extend(length.to_be_bytes());
    let start = bytes.len();
    bytes.resize(start + content, 0);
    from.read_exact(&mut bytes[start..]).await?;
    Ok(())
}

impl Asked {
    /// Tracks a client's message; returns the SQL that it executes, if any.
    pub(super) fn note(&mut self, message: &Message) -> Option<Arc<str>> {
        // A password is part of the startup, whose replies are never held back.
        self.open.begun |= message.kind != b'p';
        let mut texts = message.texts();
        let mut next = || texts.next().unwrap_or_default().to_vec();
        match message.kind {
            // Parse: a name and its SQL.
            b'P' => {
                let (name, sql) = (next(), next());
                let sql = String::from_utf8_lossy(&sql).into();
                self.statements.insert(name, sql);
                None
            }
            // Bind: a portal and the statement in it.
            b'B' => {
                let (portal, name) = (next(), next());
                let sql = self.statements.get(&name).cloned().unwrap_or_default();
                self.portals.insert(portal, sql);
                None
            }
            // Execute: a portal.
            b'E' => {
                let sql = self.portals.get(&next()).cloned().unwrap_or_default();
                self.open.executed.push(Arc::clone(&sql));
                Some(sql)
            }
            // Query: SQL alone, and its own Sync.
            b'Q' => {
                let sql: Arc<str> = message.text().into();
                self.open.executed.push(Arc::clone(&sql));
                self.close();
                Some(sql)
            }
            // Close: the letter before the name says whether it is a statement or a portal.
            b'C' => {
                let named = next();
                match named.split_first() {
                    Some((b'S', name)) => drop(self.statements.remove(name)),
                    Some((b'P', name)) => drop(self.portals.remove(name)),
                    Some(_) | None => {}
                }
                None
            }
            b'H' => {
                self.open.flushed = true;
                None
            }
            // Sync, and a function call, which is answered like a query.
            b'S' | b'F' => {
                self.close();
                None
            }
            _ => None,
        }
    }

    fn close(&mut self) {
        self.closed.push_back(std::mem::take(&mut self.open));
    }

    /// The batch that a `ReadyForQuery` ends; `None` for the one that ends the startup.
    pub(super) fn ready(&mut self) -> Option<Batch> {
        self.closed.pop_front()
    }

    /// Whether the current reply may be held back: the client does not wait for a part of it.
    pub(super) fn may_keep_back(&self) -> bool {
        let batch = self.closed.front().unwrap_or(&self.open);
        batch.begun && !batch.flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, content: &[u8]) -> Message {
        let length = u32::try_from(content.len() + 4).unwrap();
        let mut bytes = vec![kind];
        bytes.extend(length.to_be_bytes());
        bytes.extend(content);
        Message { kind, bytes }
    }

    fn sqls(batch: Option<Batch>) -> Vec<String> {
        let executed = batch.unwrap().executed;
        executed.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn statements_are_followed_by_name_through_portals_and_pipelines() {
        let mut asked = Asked::default();
        asked.note(&message(b'p', b"password\0"));
        assert!(!asked.may_keep_back());
        assert_eq!(asked.note(&message(b'P', b"s1\0INSERT\0\0\0")), None);
        assert!(asked.may_keep_back());
        assert_eq!(asked.note(&message(b'S', b"")), None);
        assert_eq!(asked.note(&message(b'P', b"s2\0UPDATE\0\0\0")), None);
        for statement in [&b"\0s1\0"[..], b"\0s2\0"] {
            asked.note(&message(b'B', statement));
            assert!(asked.note(&message(b'E', b"\0\0\0\0\0")).is_some());
        }
        asked.note(&message(b'S', b""));
        let commit = asked.note(&message(b'Q', b"COMMIT\0"));
        assert_eq!(commit.as_deref(), Some("COMMIT"));
        assert_eq!(sqls(asked.ready()), Vec::<String>::new());
        assert_eq!(sqls(asked.ready()), ["INSERT", "UPDATE"]);
        assert_eq!(sqls(asked.ready()), ["COMMIT"]);
        assert_eq!(asked.ready(), None);
        // A name that was closed and used again is the new statement.
        asked.note(&message(b'C', b"Ss1\0"));
        asked.note(&message(b'B', b"\0s1\0"));
        assert_eq!(asked.note(&message(b'E', b"\0")).as_deref(), Some(""));
        asked.note(&message(b'P', b"s1\0DELETE\0"));
        asked.note(&message(b'B', b"p\0s1\0"));
        let executed = asked.note(&message(b'E', b"p\0"));
        assert_eq!(executed.as_deref(), Some("DELETE"));
    }

    #[test]
    fn a_flush_forbids_keeping_answers_back() {
        let mut asked = Asked::default();
        asked.note(&message(b'P', b"\0SELECT\0"));
        asked.note(&message(b'H', b""));
        assert!(!asked.may_keep_back());
        asked.note(&message(b'S', b""));
        asked.ready();
        asked.note(&message(b'Q', b"SELECT\0"));
        assert!(asked.may_keep_back());
    }

    #[tokio::test]
    async fn messages_are_read_whole_and_within_a_bound() {
        let query = message(b'Q', b"COMMIT\0");
        let mut stream = &query.bytes[..];
        let read = Message::read(&mut stream).await.unwrap().unwrap();
        assert_eq!((read.kind, &read.bytes), (b'Q', &query.bytes));
        assert_eq!(read.text(), "COMMIT");
        assert!(Message::read(&mut stream).await.unwrap().is_none());
        let mut cut = &query.bytes[..7];
        assert!(Message::read(&mut cut).await.is_err());
        for length in [0u32, 3, u32::MAX] {
            let mut wrong = vec![b'Q'];
            wrong.extend(length.to_be_bytes());
            assert!(Message::read(&mut &wrong[..]).await.is_err(), "{length}");
        }
        let ssl = [0, 0, 0, 8, 4, 210, 22, 47];
        let request = Message::read_startup(&mut &ssl[..]).await.unwrap();
        assert_eq!(request.startup_code(), Some(SSL_REQUEST));
    }
}
