//! A small file system that can be filled without affecting the machine.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use tempfile::TempDir;

/// The file that fills the disk.
const BALLAST: &str = "ballast";
/// Most of the ballast is reserved in pieces of this size, which takes no time and, on a sparse image,
/// no room.
const PIECE: u64 = 16 << 20;
/// The block size of the rest of the ballast; the last blocks shrink until no byte fits.
const BLOCK: usize = 64 * 1024;

/// A mounted ext4 file system in a file. Dropping it unmounts and removes it.
#[derive(Debug)]
pub struct SmallDisk {
    mounted: PathBuf,
    /// Removed after the unmounting: fields are dropped after `drop` has run.
    directory: TempDir,
}

impl SmallDisk {
    /// Creates and mounts a file system of this size, including the overhead of ext4.
    ///
    /// # Errors
    /// Where this machine allows no such file system.
    pub fn mount(bytes: u64) -> io::Result<Self> {
        if fs::metadata("/proc/self").is_ok_and(|process| process.uid() != 0) {
            return Err(io::Error::other(
                "a full disk needs a file system of its own, and only root may mount one",
            ));
        }
        let directory = tempfile::Builder::new().prefix("semel-disk-").tempdir()?;
        // An unprivileged server must be able to enter the directory.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711))?;
        let image = directory.path().join("image");
        let mounted = directory.path().join("disk");
        fs::create_dir(&mounted)?;
        File::create(&image)?.set_len(bytes)?;
        // No blocks are reserved for root.
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(&image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&mounted))?;
        let disk = Self { mounted, directory };
        // PostgreSQL accepts only an empty directory.
        fs::remove_dir(disk.path().join("lost+found"))?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mounted
    }

    /// The directory that holds its image, and where it is mounted as `disk`.
    pub(crate) fn home(&self) -> &Path {
        self.directory.path()
    }

    /// Fills the disk. Returns the number of bytes taken.
    ///
    /// # Errors
    /// Where it cannot be written to for another reason.
    pub fn fill(&self) -> io::Result<u64> {
        let mut ballast = File::options()
            .create(true)
            .append(true)
            .open(self.mounted.join(BALLAST))?;
        let before = ballast.metadata()?.len();
        let mut reserved = before;
        while fallocate(&ballast, FallocateFlags::empty(), reserved, PIECE).is_ok() {
            reserved += PIECE;
        }
        let zeros = vec![0; BLOCK];
        let mut length = BLOCK;
        while length > 0 {
            match ballast.write(&zeros[..length]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(ballast.metadata()?.len() - before)
    }

    /// Removes the ballast.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn free(&self) -> io::Result<()> {
        match fs::remove_file(self.mounted.join(BALLAST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if run(Command::new("umount").arg(&self.mounted)).is_err() {
            // A process still has a file open in it: unmounted lazily.
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.mounted));
        }
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors = errors.trim();
        return Err(io::Error::other(format!("{program} failed: {errors}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_full_and_then_it_is_not() {
        let disk = match SmallDisk::mount(16 << 20) {
            Ok(disk) => disk,
            Err(error) => {
                println!("SKIPPED: {error}");
                return;
            }
        };
        let taken = disk.fill().unwrap();
        assert!((1 << 20..16 << 20).contains(&taken), "{taken}");
        let path = disk.path().join("file");
        // A name has room in its directory's block; a byte has none.
        let refused = fs::write(&path, "one").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.fill().unwrap(), 0);

        disk.free().unwrap();
        disk.free().unwrap();
        fs::write(&path, "one").unwrap();

        let place = disk.path().to_path_buf();
        drop(disk);
        assert!(!place.exists());
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(place.to_str().unwrap()));
    }
}
