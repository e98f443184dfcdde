//! The ledger on the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

/// One JSON object a line.
pub(super) struct LedgerFile {
    file: Arc<File>,
    /// How much of the file is known to be entries.
    length: u64,
    /// Set by a failed write. What is on the disk is uncertain then, and only reading it anew
    /// can tell.
    broken: Arc<AtomicBool>,
}

/// What makes an entry durable. It is done without the ledger's lock, so that requests that come
/// together wait for the disk together.
#[derive(Clone)]
pub(in crate::provider) struct Sync {
    file: Arc<File>,
    broken: Arc<AtomicBool>,
}

impl Sync {
    /// Returns when all that was written before is on the disk.
    pub(in crate::provider) fn wait(&self) -> io::Result<()> {
        let synced = self.file.sync_data();
        if synced.is_err() {
            self.broken.store(true, Ordering::SeqCst);
        }
        synced
    }
}

impl LedgerFile {
    /// Opens the file, and reads what is in it.
    pub(super) fn open(path: &Path) -> io::Result<(Self, String)> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // A last line without its end was being written when the provider died. Nobody was told
        // of that charge, so it was not made; left in place, it would spoil the next entry.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        if whole < bytes.len() {
            bytes.truncate(whole);
            file.set_len(whole as u64)?;
        }
        file.sync_all()?;
        sync_directory(path)?;
        let text = String::from_utf8(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let file = Self {
            file: Arc::new(file),
            length: whole as u64,
            broken: Arc::default(),
        };
        Ok((file, text))
    }

    pub(super) fn sync(&self) -> Sync {
        Sync {
            file: Arc::clone(&self.file),
            broken: Arc::clone(&self.broken),
        }
    }

    /// Writes an entry. It is durable after the next [`Sync::wait`], and nobody is told before.
    pub(super) fn append(&mut self, entry: &impl Serialize) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("a write to the ledger failed before"));
        }
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if let Err(error) = (&*self.file).write_all(&line) {
            self.broken.store(true, Ordering::SeqCst);
            // The client is told that there is no charge; so there should be none on a restart.
            if let Err(error) = self.file.set_len(self.length) {
                tracing::error!(%error, "half a ledger entry may be left");
            }
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// A new file is durable only when its directory says that it is there.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
