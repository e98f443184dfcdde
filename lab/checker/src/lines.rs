//! Files of one JSON object a line, read one at a time.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::Error;

/// Answers are a few hundred bytes, and the largest that the example gives are a megabyte.
const MAX_LINE: usize = 8 << 20;

pub(crate) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    number: usize,
    line: Vec<u8>,
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::Unreadable {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            reader: BufReader::new(file),
            number: 0,
            line: Vec::new(),
        })
    }

    /// The next line and its number, counted from 1.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<(usize, T)>, Error> {
        self.number += 1;
        self.line.clear();
        let most = MAX_LINE as u64 + 1;
        let read = self
            .reader
            .by_ref()
            .take(most)
            .read_until(b'\n', &mut self.line);
        let (path, line) = (self.path.clone(), self.number);
        match read {
            Err(source) => Err(Error::Unreadable { path, source }),
            Ok(0) => Ok(None),
            Ok(length) if length > MAX_LINE => Err(Error::TooLong {
                path,
                line,
                most: MAX_LINE,
            }),
            Ok(_) if !self.line.ends_with(b"\n") => Err(Error::Torn { path, line }),
            Ok(_) => match serde_json::from_slice(&self.line) {
                Ok(value) => Ok(Some((line, value))),
                Err(source) => Err(Error::Unknown { path, line, source }),
            },
        }
    }

    pub(crate) fn wrong(&self, line: usize, what: &'static str) -> Error {
        Error::Wrong {
            path: self.path.clone(),
            line,
            what,
        }
    }
}
