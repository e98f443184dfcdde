//! Tables that fit the terminal.
//!
//! Our own sixty lines rather than `tabled` or `comfy-table`: rows are printed page by page while
//! later pages are still being fetched, only chosen columns are cut, and ids never wrap. Those crates
//! lay out a complete table, and wrap cells.

use std::fmt::Write as _;
use std::io;

use rustix::termios::tcgetwinsize;

use super::text::cut;

/// Blanks between two columns.
const GAP: usize = 2;

/// Columns are not cut below this width.
const NARROWEST: usize = 10;

/// The width of the terminal; `None` if standard output is not one.
pub(crate) fn width() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// Columns, some of which are shortened if the terminal is too narrow.
pub(crate) struct Table {
    titles: &'static [&'static str],
    shrinks: &'static [bool],
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(titles: &'static [&'static str], shrinks: &'static [bool]) -> Self {
        Self {
            titles,
            shrinks,
            widths: titles.iter().map(|title| title.len()).collect(),
        }
    }

    /// Widens the columns for these rows.
    pub(crate) fn measure(&mut self, rows: &[Vec<String>]) {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
    }

    /// Narrows shrinkable columns until a line has at most `most` characters; false if impossible.
    pub(crate) fn fit(&mut self, most: usize) -> bool {
        while self.line_width() > most {
            let widest = (0..self.widths.len())
                .filter(|column| self.shrinks[*column] && self.widths[*column] > NARROWEST)
                .max_by_key(|column| self.widths[*column]);
            let Some(widest) = widest else {
                return false;
            };
            self.widths[widest] -= 1;
        }
        true
    }

    fn line_width(&self) -> usize {
        self.widths.iter().sum::<usize>() + GAP * self.widths.len().saturating_sub(1)
    }

    pub(crate) fn head(&self) -> String {
        self.row(self.titles)
    }

    /// One line, without trailing blanks.
    pub(crate) fn row(&self, cells: &[impl AsRef<str>]) -> String {
        let mut line = String::new();
        for ((cell, width), shrinks) in cells.iter().zip(&self.widths).zip(self.shrinks) {
            let cell = cell.as_ref();
            let cell = if *shrinks {
                cut(cell, *width)
            } else {
                cell.to_owned()
            };
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:<width$}{:GAP$}", "");
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(&["ID", "NAME", "KEY"], &[false, true, true])
    }

    fn row(cells: [&str; 3]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = table();
        let rows = [row(["1", "a name", ""]), row(["12345", "b", "k"])];
        table.measure(&rows);
        assert_eq!(table.head(), "ID     NAME    KEY\n");
        assert_eq!(table.row(&rows[0]), "1      a name\n");
        assert_eq!(table.row(&rows[1]), "12345  b       k\n");
    }

    #[test]
    fn the_widest_column_shrinks_first_and_ids_never() {
        let mut table = table();
        let rows = [row([
            "0123456789012345",
            "a-name-of-18-chars",
            "twelve-chars",
        ])];
        table.measure(&rows);
        assert!(table.fit(45));
        assert_eq!(
            table.row(&rows[0]),
            "0123456789012345  a-name-of-18…  twelve-chars\n"
        );
        assert!(table.fit(40));
        assert_eq!(
            table.row(&rows[0]),
            "0123456789012345  a-name-of…  twelve-ch…\n"
        );
        assert!(!table.fit(39));
    }
}
