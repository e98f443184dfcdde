//! The journal of `semel call`: where it is, and what a person does with it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use semel_client::journal::Open;
use semel_client::{Environment as _, Journal, System};

/// The journal in `file`, or in the user's state directory.
pub(super) fn open(file: Option<&Path>) -> Result<Journal> {
    let path = match file {
        Some(path) => path.to_owned(),
        None => default_path()?,
    };
    Ok(Journal::sqlite(&path)?)
}

/// Not in the working directory: a job that starts elsewhere would get another key.
fn default_path() -> Result<PathBuf> {
    let absolute = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let Some(state) = state else {
        bail!("there is no home directory for the journal: name a file with --journal");
    };
    let directory = state.join("semel");
    create_directory(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory.join("journal.db"))
}

/// Creates a directory with those above it, and makes their names durable: after a loss of power the keys below them would be gone.
fn create_directory(directory: &Path) -> io::Result<()> {
    let Some(parent) = directory.parent().filter(|_| !directory.is_dir()) else {
        return Ok(());
    };
    create_directory(parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::open(parent)?.sync_all()
}

/// Forgets an intent, or lists the open ones.
pub(super) async fn answer(journal: &Journal, forget: Option<&str>) -> Result<ExitCode> {
    let Some(intent) = forget else {
        let now = System.now();
        let mut out = io::stdout().lock();
        for open in journal.list().await? {
            let state = state(&open, open.expires_at <= now);
            let Open {
                intent,
                method,
                url,
                ..
            } = open;
            writeln!(out, "{intent}\t{method}\t{url}\t{state}")?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    if !journal.forget(intent).await? {
        return Ok(super::fail(
            super::USAGE,
            &format!("the journal does not know the intent {intent}"),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn state(open: &Open, is_over: bool) -> String {
    let mut state = if open.is_unknown { "unknown" } else { "open" }.to_owned();
    if let Some(id) = &open.operation_id {
        state = format!("{state}, operation {id}");
    }
    if is_over {
        return format!(
            "{state}, the lifetime of its key is over: look the outcome up, then forget it"
        );
    }
    match Timestamp::from_microsecond(open.expires_at.as_micros()) {
        Ok(until) => format!("{state}, its key is sent until {until:.0}"),
        Err(_) => state,
    }
}
