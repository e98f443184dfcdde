//! A throwaway Postgres.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::install::{is_root, numeric_id};
use super::{Launch, find_in_path};

/// Debian keeps the programs of each version out of the search path.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_isready"];
/// Postgres refuses to run as root; the first of these that exists runs it instead.
const UNPRIVILEGED_USERS: [&str; 2] = ["postgres", "nobody"];

/// The newest version that is complete, else the one in the search path.
pub(super) fn find_programs() -> Option<PathBuf> {
    newest_version(Path::new(DEBIAN_VERSIONS)).or_else(|| {
        let directory = find_in_path("initdb")?;
        is_complete(&directory).then_some(directory)
    })
}

fn newest_version(versions: &Path) -> Option<PathBuf> {
    fs::read_dir(versions)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, directory)| is_complete(directory))
        .max()
        .map(|(_, directory)| directory)
}

fn is_complete(directory: &Path) -> bool {
    PROGRAMS
        .iter()
        .all(|program| directory.join(program).is_file())
}

/// Creates the cluster, with Postgres' default settings except for directory and port: with `fsync`
/// off a durability test would prove nothing.
pub(super) fn prepare(programs: &Path, directory: &Path, port: u16) -> Result<Launch> {
    let user = unprivileged_user()?;
    let data = directory.join("data");
    let sockets = directory.join("sockets");
    for path in [&data, &sockets] {
        fs::create_dir(path)?;
        if let Some(user) = &user {
            chown(path, Some(user.id), Some(user.group))?;
        }
    }
    if user.is_some() {
        // The other user must be able to enter the directory, but not to list it.
        fs::set_permissions(directory, Permissions::from_mode(0o711))?;
    }

    let initdb = command_as(user.as_ref(), &programs.join("initdb"), directory)
        .args([
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
        ])
        .arg("--pgdata")
        .arg(&data)
        .output()
        .context("cannot run initdb")?;
    if !initdb.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&initdb.stderr));
    }

    let mut command = command_as(user.as_ref(), &programs.join("postgres"), directory);
    command
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-D"])
        .arg(&data)
        .arg("-k")
        .arg(&sockets);
    let pg_isready = programs.join("pg_isready");
    Ok(Launch {
        command,
        companion: None,
        url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        // Postgres' "fast" stop: TERM would wait for every client to leave.
        stop_signal: "INT",
        answers: Box::new(move || {
            Command::new(&pg_isready)
                .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        }),
    })
}

struct User {
    id: u32,
    group: u32,
}

/// The user to run Postgres as, if the current user is root.
fn unprivileged_user() -> Result<Option<User>> {
    if !is_root() {
        return Ok(None);
    }
    UNPRIVILEGED_USERS
        .iter()
        .find_map(|name| {
            Some(User {
                id: numeric_id("-u", Some(name))?,
                group: numeric_id("-g", Some(name))?,
            })
        })
        .map(Some)
        .with_context(|| {
            format!("Postgres does not run as root: add one of {UNPRIVILEGED_USERS:?}")
        })
}

/// `setpriv` replaces itself with the program, so that the process id we hold is the server's;
/// `runuser` and `su` would stay in between.
fn command_as(user: Option<&User>, program: &Path, directory: &Path) -> Command {
    let mut command = match user {
        None => Command::new(program),
        Some(user) => {
            let mut setpriv = Command::new("setpriv");
            setpriv
                .args([
                    format!("--reuid={}", user.id),
                    format!("--regid={}", user.group),
                ])
                .args(["--clear-groups", "--"])
                .arg(program);
            setpriv
        }
    };
    // The other user may not be able to enter the caller's directory.
    command.current_dir(directory);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_version_is_taken() {
        let versions = tempfile::tempdir().unwrap();
        for (version, programs) in [("9", 3), ("15", 3), ("17", 1)] {
            let directory = versions.path().join(version).join("bin");
            fs::create_dir_all(&directory).unwrap();
            for program in &PROGRAMS[..programs] {
                fs::write(directory.join(program), "").unwrap();
            }
        }
        assert_eq!(
            newest_version(versions.path()),
            Some(versions.path().join("15/bin"))
        );
        assert_eq!(newest_version(&versions.path().join("none")), None);
    }
}
