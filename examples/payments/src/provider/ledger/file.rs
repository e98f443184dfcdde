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
    /// Set by a failed write: what is on the disk is then unknown until the file is read again.
    broken: Arc<AtomicBool>,
}

/// Makes entries durable. It does not hold the ledger's lock, so that concurrent requests share a
/// write to the disk.
#[derive(Clone)]
pub(in crate::provider) struct Sync {
    file: Arc<File>,
    broken: Arc<AtomicBool>,
}

impl Sync {
    /// Returns when every entry that was appended before is on the disk.
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
        // The provider died while it wrote an incomplete last line. It did not acknowledge that
        // charge, so the line is removed.
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

    /// Writes an entry, which must not be acknowledged before the next [`Sync::wait`].
    pub(super) fn append(&mut self, entry: &impl Serialize) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("a write to the ledger failed before"));
        }
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if let Err(error) = (&*self.file).write_all(&line) {
            self.broken.store(true, Ordering::SeqCst);
            // The answer is that there is no charge, so there must be none after a restart.
            if let Err(error) = self.file.set_len(self.length) {
                tracing::error!(%error, "an incomplete ledger entry may be left");
            }
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// A new file is durable only when its directory is synced.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
