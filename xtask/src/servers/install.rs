//! Installing servers from Debian packages, where that is possible.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{NEEDED, Origin, Server, explain_missing, find_daemon, find_in_path, locate};
use crate::process::{Interrupt, run};
use crate::{sdks, workspace_root};

/// Debian asks this program whether a package may start its service.
const SERVICE_POLICY: &str = "/usr/sbin/policy-rc.d";
/// The exit status for "forbidden", which is not an error.
const SERVICE_POLICY_TEXT: &str = "#!/bin/sh\nexit 101\n";

pub(super) fn is_possible() -> bool {
    is_root() && find_in_path("apt-get").is_some()
}

pub(super) fn packages(names: &[&str]) -> Result<()> {
    println!("installing {}", names.join(", "));
    let _policy = NoServices::declare(PathBuf::from(SERVICE_POLICY))?;
    run(apt_get().args(["update", "--quiet"]))?;
    run(apt_get()
        .args(["install", "--quiet", "--yes", "--no-install-recommends"])
        .args(names))
}

/// Installs the programs of servers from Debian and from npm.
pub(super) fn missing(missing: &[Server], may_install: bool) -> Result<()> {
    let (of_npm, of_debian): (Vec<Server>, Vec<Server>) = missing
        .iter()
        .copied()
        .partition(|server| server.is_from_npm());
    if !of_npm.is_empty() {
        let root = workspace_root()?;
        sdks::install_for(&[sdks::DYNAMODB], &root, may_install, &Interrupt::never())?;
        if of_npm.iter().any(|server| server.find_programs().is_none()) {
            bail!(explain_missing(missing));
        }
    }
    if of_debian.is_empty() {
        return Ok(());
    }
    if !may_install || !is_possible() {
        bail!(explain_missing(missing));
    }
    let of_packages: Vec<_> = of_debian.iter().map(|server| server.package()).collect();
    packages(&of_packages).with_context(|| explain_missing(missing))
}

/// Programs that tests run besides the servers, with the packages that hold them.
const PROGRAMS: [(&str, &str); 9] = [
    ("chromium", "chromium"),
    ("etcd", "etcd-server"),
    ("faketime", "faketime"),
    ("go", "golang-go"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("pgbouncer", "pgbouncer"),
    ("promtool", "prometheus"),
    ("strace", "strace"),
];

/// Installs all missing programs that the tests run. A test that needs a program which cannot be
/// installed reports that later.
pub fn install_programs(may_install: bool) {
    let servers = NEEDED
        .iter()
        .filter(|server| !server.is_from_npm() && locate(**server) == Origin::Missing)
        .map(|server| server.package());
    let programs = PROGRAMS
        .iter()
        .filter(|(program, _)| find_daemon(program).is_none())
        .map(|(_, package)| *package);
    let missing: Vec<_> = servers.chain(programs).collect();
    if missing.is_empty() || !may_install || !is_possible() {
        return;
    }
    if let Err(error) = packages(&missing) {
        println!("{} cannot be installed: {error:#}", missing.join(", "));
    }
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

pub(super) fn is_root() -> bool {
    numeric_id("-u", None) == Some(0)
}

/// The user (`-u`) or group (`-g`) id of a user, or our own.
pub(super) fn numeric_id(which: &str, user: Option<&str>) -> Option<u32> {
    let output = Command::new("id").arg(which).args(user).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Keeps packages from starting the distribution's own service, which would take the usual port and
/// keep running. Undone when dropped.
struct NoServices {
    /// None where the machine has a policy already, which is kept.
    created: Option<PathBuf>,
}

impl NoServices {
    fn declare(path: PathBuf) -> Result<Self> {
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(&path)
        {
            Ok(mut file) => {
                let policy = Self {
                    created: Some(path),
                };
                file.write_all(SERVICE_POLICY_TEXT.as_bytes())?;
                Ok(policy)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Self { created: None }),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(path) = &self.created
            && let Err(error) = fs::remove_file(path)
        {
            eprintln!("remove {} by hand: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_policy_is_undone_unless_it_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy-rc.d");
        drop(NoServices::declare(path.clone()).unwrap());
        assert!(!path.exists());

        fs::write(&path, "theirs").unwrap();
        drop(NoServices::declare(path.clone()).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }
}
