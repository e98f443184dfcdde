//! A wall clock that jumps while its process runs, by libfaketime.
//!
//! Timers go by the monotonic clock, which no administrator can set, and which stays as it is.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian keeps it below the directory of the machine's kind.
const LIBRARIES: &str = "/usr/lib";
/// The one for programs of several threads first.
const NAMES: [&str; 2] = ["libfaketimeMT.so.1", "libfaketime.so.1"];

/// The clock of every process it was [applied](Shifted::apply) to.
#[derive(Debug)]
pub struct Shifted {
    library: PathBuf,
    file: PathBuf,
}

/// The library, if it is installed.
pub fn find() -> Option<PathBuf> {
    let kinds = fs::read_dir(LIBRARIES).ok()?.filter_map(Result::ok);
    let mut directories: Vec<PathBuf> = kinds.map(|kind| kind.path().join("faketime")).collect();
    directories.push(Path::new(LIBRARIES).join("faketime"));
    let candidates = NAMES
        .iter()
        .flat_map(|name| directories.iter().map(move |place| place.join(name)));
    candidates.into_iter().find(|path| path.is_file())
}

impl Shifted {
    /// A clock without an offset until it is [set](Shifted::set), with its file in `directory`.
    ///
    /// # Errors
    /// Where the library is missing, or the file cannot be written.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let library = find().ok_or_else(|| {
            io::Error::other(
                "clocks are moved by libfaketime, which is not here: install the package \
                 `libfaketime`",
            )
        })?;
        let clock = Self {
            // As the kernel names it in the maps of a process.
            library: fs::canonicalize(library)?,
            file: directory.join("clock"),
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// The library that is loaded into a process with this clock.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Makes a process that is not started yet use this clock.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// The environment of a process with this clock.
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", self.library.clone().into()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone().into()),
            // Otherwise a jump takes effect only after ten seconds.
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    /// Sets the offset of the clock from the real time, at once.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn set(&self, offset_seconds: i64) -> io::Result<()> {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{offset_seconds:+}\n"))?;
        // A reader must never see half a number.
        fs::rename(&next, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::Stdio;

    use super::*;

    const DAY: i64 = 86_400;
    const YEAR: i64 = 365 * DAY;

    /// Prints both clocks of this process, in seconds, for each line it reads.
    #[test]
    #[ignore = "is run by the test below, as a process with a clock of its own"]
    #[expect(
        clippy::disallowed_methods,
        reason = "shows what std makes of the clocks"
    )]
    fn tells_the_time() {
        let began = std::time::Instant::now();
        for _ in io::stdin().lines() {
            let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let (wall, timer) = (wall.unwrap().as_secs(), began.elapsed().as_secs());
            // Not captured by the test runner, unlike `println!`.
            writeln!(io::stdout(), "time {wall} {timer}").unwrap();
        }
    }

    #[test]
    fn the_wall_clock_of_a_running_program_jumps_and_its_timers_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let clock = match Shifted::new(directory.path()) {
            Ok(clock) => clock,
            Err(error) => {
                println!("SKIPPED: {error}");
                return;
            }
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--nocapture", "tells_the_time"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        clock.apply(&mut command);
        let mut program = command.spawn().unwrap();
        let mut ask = program.stdin.take().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut time = || -> (i64, i64) {
            writeln!(ask, "now").unwrap();
            let line = lines.find_map(|line| {
                let line = line.unwrap();
                let (_, both) = line.split_once("time ")?;
                let (wall, timer) = both.split_once(' ')?;
                Some((wall.parse().unwrap(), timer.parse().unwrap()))
            });
            line.unwrap()
        };

        let (right, _) = time();
        for offset in [3_600, 5 * YEAR, -2 * YEAR, 0] {
            clock.set(offset).unwrap();
            let (wall, timer) = time();
            let late = wall - right - offset;
            // Tolerates a busy machine; a jump is far longer.
            assert!((0..1_800).contains(&late), "{offset}: {late}");
            assert!((0..1_800).contains(&timer), "{offset}: {timer}");
        }
        drop(ask);
        assert!(program.wait().unwrap().success());
    }
}
