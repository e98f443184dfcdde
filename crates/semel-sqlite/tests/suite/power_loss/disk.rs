//! A disk that may forget what was not synced.
//!
//! After a sync of a file its content and length are durable, after a sync of its directory its
//! name is. Before that a power loss leaves any mixture: each sector of a file may be as any of the
//! writes since the sync left it, the length and the names likewise, and independently.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::Random;
use super::trace::Event;

/// The unit that a disk writes as a whole.
const SECTOR: usize = 512;

/// The index of the log, which SQLite rebuilds: it is never synced, and no data depends on it.
const NOT_DURABLE: &str = "-shm";

/// What a power loss does to that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// All of it is lost.
    Everything,
    /// The last writes of each file are lost, one of them in the middle.
    Tail,
    /// Any sectors are lost, whatever their order was.
    Reordered,
}

impl Loss {
    pub(super) const ALL: [Self; 3] = [Self::Everything, Self::Tail, Self::Reordered];
}

#[derive(Default)]
pub(super) struct Disk {
    directory: PathBuf,
    files: Vec<File>,
    /// The names that programs see.
    visible: BTreeMap<PathBuf, usize>,
    /// The names that a power loss leaves.
    durable: BTreeMap<PathBuf, usize>,
    /// The changes of names since the last sync of the directory.
    renamed: Vec<(PathBuf, Option<usize>)>,
    /// How many changes of names a running sync includes.
    syncing: BTreeMap<u32, usize>,
}

#[derive(Default)]
struct File {
    durable: Vec<u8>,
    /// Since the last sync.
    changes: Vec<Change>,
    /// How many changes a running sync of a thread includes.
    syncing: BTreeMap<u32, usize>,
}

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Disk {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, event: &Event) {
        if event.path().to_string_lossy().ends_with(NOT_DURABLE) {
            return;
        }
        match event {
            Event::Open(path) => {
                if *path != self.directory && !self.visible.contains_key(path) {
                    self.rename(path, Some(self.files.len()));
                    self.files.push(File::default());
                }
            }
            Event::Remove(path) => self.rename(path, None),
            Event::Write { path, offset, data } => {
                self.change(path, Change::Write(*offset, data.clone()));
            }
            Event::Truncate { path, length } => self.change(path, Change::Truncate(*length)),
            Event::SyncBegin { thread, path } if *path == self.directory => {
                self.syncing.insert(*thread, self.renamed.len());
            }
            Event::SyncEnd { thread, path } if *path == self.directory => {
                let included = self.syncing.remove(thread).expect("a sync that began");
                let included = included.min(self.renamed.len());
                for (path, file) in self.renamed.drain(..included) {
                    set_name(&mut self.durable, path, file);
                }
                self.syncing
                    .values_mut()
                    .for_each(|other| *other = other.saturating_sub(included));
            }
            Event::SyncBegin { thread, path } => {
                if let Some(file) = self.file(path) {
                    file.syncing.insert(*thread, file.changes.len());
                }
            }
            Event::SyncEnd { thread, path } => {
                if let Some(file) = self.file(path) {
                    file.sync(*thread);
                }
            }
        }
    }

    /// Whether a power loss now could lose anything.
    pub(super) fn has_unsynced(&self) -> bool {
        let files = self.visible.values();
        let mut files = files.map(|file| &self.files[*file]);
        !self.renamed.is_empty() || files.any(|file| !file.changes.is_empty())
    }

    /// The files that a power loss leaves.
    pub(super) fn cut(&self, loss: Loss, random: &mut Random) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut names = self.durable.clone();
        let mut stale = HashSet::new();
        for (path, file) in &self.renamed {
            // From the first lost change on, a name stays as it was.
            if loss == Loss::Everything || random.below(2) == 0 {
                stale.insert(path);
            }
            if !stale.contains(path) {
                set_name(&mut names, path.clone(), *file);
            }
        }
        let files = names.into_iter();
        files
            .map(|(path, file)| (path, self.files[file].cut(loss, random)))
            .collect()
    }

    fn rename(&mut self, path: &Path, file: Option<usize>) {
        set_name(&mut self.visible, path.to_owned(), file);
        self.renamed.push((path.to_owned(), file));
    }

    fn change(&mut self, path: &Path, change: Change) {
        if let Some(file) = self.file(path) {
            file.changes.push(change);
        }
    }

    /// `None` for a file that was removed, and for one of which only the index is left.
    fn file(&mut self, path: &Path) -> Option<&mut File> {
        let file = self.visible.get(path)?;
        self.files.get_mut(*file)
    }
}

fn set_name(names: &mut BTreeMap<PathBuf, usize>, path: PathBuf, file: Option<usize>) {
    match file {
        Some(file) => names.insert(path, file),
        None => names.remove(&path),
    };
}

impl File {
    fn sync(&mut self, thread: u32) {
        let included = self.syncing.remove(&thread).expect("a sync that began");
        let included = included.min(self.changes.len());
        for change in self.changes.drain(..included) {
            change.apply(&mut self.durable, |_| true);
        }
        self.syncing
            .values_mut()
            .for_each(|other| *other = other.saturating_sub(included));
    }

    fn cut(&self, loss: Loss, random: &mut Random) -> Vec<u8> {
        let mut content = self.durable.clone();
        match loss {
            Loss::Everything => {}
            Loss::Tail => {
                let whole = random.below(self.changes.len() + 1);
                for change in &self.changes[..whole] {
                    change.apply(&mut content, |_| true);
                }
                if let Some(torn) = self.changes.get(whole) {
                    let end = random.below(torn.sectors() + 1);
                    let first = torn.first_sector();
                    torn.apply(&mut content, |sector| sector < first + end);
                }
            }
            Loss::Reordered => {
                let mut lengths = vec![content.len()];
                let mut stale = HashSet::new();
                // Sometimes little is lost, sometimes much.
                let kept_of_eight = 1 + random.below(7);
                for change in &self.changes {
                    let mut keep = |sector| {
                        // From the first lost write on, a sector stays as it was.
                        !stale.contains(&sector)
                            && (random.below(8) < kept_of_eight || !stale.insert(sector))
                    };
                    change.apply(&mut content, &mut keep);
                    let before = *lengths.last().unwrap();
                    lengths.push(change.length_after(before));
                }
                let at = random.below(lengths.len() * 2).min(lengths.len() - 1);
                content.resize(lengths[at], 0);
            }
        }
        content
    }
}

impl Change {
    fn first_sector(&self) -> usize {
        match self {
            Self::Write(offset, _) => offset / SECTOR,
            Self::Truncate(_) => 0,
        }
    }

    /// How many sectors a tear can separate.
    fn sectors(&self) -> usize {
        match self {
            Self::Write(offset, data) => {
                (offset + data.len()).div_ceil(SECTOR) - self.first_sector()
            }
            Self::Truncate(_) => 0,
        }
    }

    fn length_after(&self, before: usize) -> usize {
        match self {
            Self::Write(offset, data) => before.max(offset + data.len()),
            Self::Truncate(length) => *length,
        }
    }

    /// Applies the change to those sectors that `keep` accepts.
    fn apply(&self, content: &mut Vec<u8>, mut keep: impl FnMut(usize) -> bool) {
        match self {
            Self::Write(offset, data) => {
                let mut at = *offset;
                let end = offset + data.len();
                while at < end {
                    let next = ((at / SECTOR + 1) * SECTOR).min(end);
                    if keep(at / SECTOR) {
                        if content.len() < next {
                            content.resize(next, 0);
                        }
                        content[at..next].copy_from_slice(&data[at - offset..next - offset]);
                    }
                    at = next;
                }
            }
            Self::Truncate(length) => {
                if keep(length / SECTOR) {
                    content.resize(*length, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/disk/file";

    fn write(offset: usize, data: &[u8]) -> Event {
        let (path, data) = (FILE.into(), data.to_vec());
        Event::Write { path, offset, data }
    }

    fn sync(disk: &mut Disk, path: &str) {
        let (thread, path) = (1, PathBuf::from(path));
        disk.apply(&Event::SyncBegin {
            thread,
            path: path.clone(),
        });
        disk.apply(&Event::SyncEnd { thread, path });
    }

    fn left(disk: &Disk, loss: Loss, seed: u64) -> Option<Vec<u8>> {
        let mut left = disk.cut(loss, &mut Random::new(seed));
        left.remove(Path::new(FILE))
    }

    #[test]
    fn a_power_loss_leaves_what_was_synced() {
        let mut disk = Disk::new(Path::new("/disk"));
        disk.apply(&Event::Open(FILE.into()));
        disk.apply(&write(0, &[1; 1024]));
        sync(&mut disk, FILE);
        assert_eq!(left(&disk, Loss::Everything, 1), None, "its name was lost");
        sync(&mut disk, "/disk");
        disk.apply(&write(0, &[2; 2048]));
        let found = left(&disk, Loss::Everything, 1);
        assert_eq!(found, Some(vec![1; 1024]));
        sync(&mut disk, FILE);
        for seed in 1..100 {
            for loss in Loss::ALL {
                assert_eq!(left(&disk, loss, seed), Some(vec![2; 2048]), "{loss:?}");
            }
        }
    }

    #[test]
    fn a_power_loss_tears_and_reorders_what_was_not_synced() {
        let mut disk = Disk::new(Path::new("/disk"));
        disk.apply(&Event::Open(FILE.into()));
        disk.apply(&write(0, &[1; 1024]));
        sync(&mut disk, FILE);
        sync(&mut disk, "/disk");
        disk.apply(&write(0, &[2; 1024]));
        disk.apply(&write(0, &[3; 1024]));
        let seen = |loss| -> HashSet<(u8, u8)> {
            let sectors = |bytes: Vec<u8>| (bytes[0], bytes[SECTOR]);
            let seeds = 1..1000;
            seeds
                .map(|seed| sectors(left(&disk, loss, seed).unwrap()))
                .collect()
        };
        let tail = HashSet::from([(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]);
        assert_eq!(seen(Loss::Tail), tail);
        assert_eq!(seen(Loss::Reordered).len(), 9, "any version of each sector");
    }
}
