//! The copy of the tree with the mutants.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::source::Changed;

/// Copies the working tree at `root` to `copy`, with `changed` in it. Returns how many files were
/// written. Unchanged files are not written again, since cargo would rebuild them.
pub(super) fn copy(root: &Path, copy: &Path, changed: &Changed) -> Result<usize> {
    let files = tracked(root)?;
    let mut written = 0;
    for file in &files {
        let source = root.join(file);
        let target = copy.join(file);
        let bytes = match changed.get(file) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(&source).with_context(|| format!("cannot read {file}"))?,
        };
        if fs::read(&target).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(directory) = target.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&target, bytes).with_context(|| format!("cannot write {file}"))?;
        fs::set_permissions(&target, fs::metadata(&source)?.permissions())?;
        written += 1;
    }
    if let Some(unknown) = changed.keys().find(|file| !files.contains(*file)) {
        bail!("{unknown} is changed by a mutant and is not part of the tree");
    }
    remove_others(copy, "", &files)?;
    Ok(written)
}

/// The tracked and untracked files of the working tree, without ignored ones.
fn tracked(root: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .context("cannot ask git for the files of the tree")?;
    if !output.status.success() {
        bail!("git does not know the files of {}", root.display());
    }
    let names = String::from_utf8(output.stdout).context("a file's name is not text")?;
    // A file that was removed and not yet committed is still in git's list.
    let there = |file: &&str| !file.is_empty() && root.join(file).is_file();
    Ok(names
        .split('\0')
        .filter(there)
        .map(ToOwned::to_owned)
        .collect())
}

/// Removes from the copy what is no longer in the tree: a forgotten test file would still be built.
fn remove_others(copy: &Path, directory: &str, files: &BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(copy.join(directory))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if directory.is_empty() {
            name
        } else {
            format!("{directory}/{name}")
        };
        if entry.file_type()?.is_dir() {
            remove_others(copy, &path, files)?;
        } else if !files.contains(&path) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        let status = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn the_copy_is_the_working_tree_with_the_changes() {
        let place = tempfile::tempdir().unwrap();
        let (root, there) = (place.path().join("root"), place.path().join("copy"));
        fs::create_dir_all(root.join("src")).unwrap();
        git(&root, &["init", "--quiet"]);
        let write = |file: &str, text: &str| fs::write(root.join(file), text).unwrap();
        write(".gitignore", "built\n");
        write("src/a.rs", "a");
        write("src/b.rs", "b");
        write("gone.rs", "gone");
        write("built", "not part of it");
        git(&root, &["add", "."]);
        fs::remove_file(root.join("gone.rs")).unwrap();
        write("src/new.rs", "not added yet");

        let changed = Changed::from([("src/b.rs".to_owned(), "mutated".to_owned())]);
        let read = |file: &str| fs::read_to_string(there.join(file)).ok();
        assert_eq!(copy(&root, &there, &changed).unwrap(), 4);
        assert_eq!(read("src/a.rs").unwrap(), "a");
        assert_eq!(read("src/b.rs").unwrap(), "mutated");
        assert_eq!(read("src/new.rs").unwrap(), "not added yet");
        assert_eq!((read("gone.rs"), read("built")), (None, None));

        // Unchanged files are not written again.
        assert_eq!(copy(&root, &there, &changed).unwrap(), 0);
        write("src/a.rs", "a again");
        fs::remove_file(root.join("src/new.rs")).unwrap();
        assert_eq!(copy(&root, &there, &Changed::new()).unwrap(), 2);
        assert_eq!(read("src/b.rs").unwrap(), "b");
        assert_eq!(read("src/new.rs"), None);

        let unknown = Changed::from([("built".to_owned(), String::new())]);
        let error = copy(&root, &there, &unknown).unwrap_err().to_string();
        assert!(error.starts_with("built is changed"), "{error}");
    }
}
