//! A small file system of its own, that can be full without anybody else noticing.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// What takes the room away.
const BALLAST: &str = "ballast";
/// What the ballast is written with; the last block shrinks until not even a byte has room.
const BLOCK: usize = 64 * 1024;

/// An ext4 file system in a file, mounted. Dropped, it is unmounted and removed.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    mounted: PathBuf,
    /// Removed after the unmounting: fields are dropped after `drop` has run.
    _directory: TempDir,
}

impl SmallDisk {
    /// Makes and mounts one of so many bytes, and less what ext4 needs for itself.
    pub(crate) fn mount(bytes: u64) -> Result<Self> {
        if fs::metadata("/proc/self").is_ok_and(|process| process.uid() != 0) {
            bail!("a full disk needs a file system of its own, and only root may mount one");
        }
        let directory = tempfile::Builder::new()
            .prefix("semel-disk-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        // An unprivileged server has to pass through.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711))?;
        let image = directory.path().join("image");
        let mounted = directory.path().join("disk");
        fs::create_dir(&mounted)?;
        File::create(&image)?.set_len(bytes)?;
        // Nothing is kept back for root: full is full for everybody.
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(&image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&mounted))
        .context("a full disk needs a loop device, and leave to mount it")?;
        let disk = Self {
            mounted,
            _directory: directory,
        };
        // PostgreSQL takes only an empty directory.
        fs::remove_dir(disk.path().join("lost+found"))?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mounted
    }

    /// Takes all the room there is, and says how much that was.
    pub(crate) fn fill(&self) -> Result<u64> {
        let mut ballast = File::options()
            .create(true)
            .append(true)
            .open(self.mounted.join(BALLAST))?;
        let zeros = vec![0; BLOCK];
        let mut taken = 0_u64;
        let mut length = BLOCK;
        while length > 0 {
            match ballast.write(&zeros[..length]) {
                Ok(written) => taken += written as u64,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(error).context("cannot fill the disk"),
            }
        }
        Ok(taken)
    }

    /// Gives the room back.
    pub(crate) fn free(&self) -> Result<()> {
        match fs::remove_file(self.mounted.join(BALLAST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).context("cannot free the disk")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if run(Command::new("umount").arg(&self.mounted)).is_err() {
            // Somebody still has a file open in it: out of sight now, gone when they are.
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.mounted));
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed: {}", said.trim());
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
                println!("SKIPPED: {error:#}");
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
