//! Whether the database is still the file that was opened.
//!
//! A process keeps a file that was removed or replaced, and would go on granting executions by records
//! that no other process sees, and that are gone with the last connection.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use semel_core::Error;

/// The database and its log, as they were opened.
#[derive(Debug)]
pub(crate) struct SameFile(Vec<(PathBuf, FileId)>);

/// What names a file, whatever its path is.
#[derive(Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl SameFile {
    /// After the log was created.
    pub(crate) fn new(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let files = [path.to_owned(), PathBuf::from(log)].into_iter();
        let known = files.filter_map(|file| file_id(&file).ok().map(|id| (file, id)));
        Self(known.collect())
    }

    /// # Errors
    /// [`Error::Unavailable`] if a file was removed or replaced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let changed = self.0.iter().find(|(path, id)| {
            // An error besides this one may pass, and says nothing about the file.
            match file_id(path) {
                Ok(found) => found != *id,
                Err(error) => error.kind() == ErrorKind::NotFound,
            }
        });
        match changed {
            None => Ok(()),
            Some((path, _)) => Err(Error::Unavailable {
                reason: format!(
                    "{} was removed or replaced while this process uses it; restore it if it was \
                     moved, and restart",
                    path.display()
                )
                .into(),
                source: None,
            }),
        }
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(path)?;
    Ok(FileId(found.dev(), found.ino()))
}

/// Elsewhere an open file cannot be removed.
#[cfg(not(unix))]
fn file_id(_: &Path) -> io::Result<FileId> {
    Err(ErrorKind::Unsupported.into())
}
