//! What the benchmarks found, for a reader and for `docs/performance.md`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::measure::{Lines, Row, print};
use crate::target::{self, Target};

/// How results are judged and where they go.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct Output {
    /// Fails if a target is missed, or was to be measured and could not be.
    #[arg(long)]
    pub(crate) check: bool,
    /// Writes the results to this file.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Default, Serialize)]
pub(crate) struct Report {
    tables: Vec<Table>,
    targets: Vec<Target>,
}

#[derive(Serialize)]
struct Table {
    title: String,
    rows: Vec<Row>,
}

impl Report {
    /// Prints a table and keeps it; `peers` names what a line is compared with.
    pub(crate) fn table(
        &mut self,
        title: &str,
        lines: &Lines,
        peers: impl Fn(&str) -> Vec<String>,
    ) {
        let rows = lines.rows(peers);
        print(title, &rows);
        self.tables.push(Table {
            title: title.to_owned(),
            rows,
        });
    }

    pub(crate) fn targets(&mut self, targets: impl IntoIterator<Item = Target>) {
        self.targets.extend(targets);
    }

    /// Prints all targets in one table.
    pub(crate) fn finish(&self, output: &Output, all_asked_for: bool) -> Result<()> {
        let kept = target::verdict(&self.targets);
        if let Some(path) = &output.json {
            self.write(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        ensure!(
            !output.check || kept.holds(all_asked_for),
            "not every target is reached"
        );
        Ok(())
    }

    fn write(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, serde_json::to_vec_pretty(self)?)?)
    }
}
