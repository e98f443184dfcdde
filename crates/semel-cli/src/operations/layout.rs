//! Tables that fit.

use std::fmt::Write as _;
use std::io;

use rustix::termios::tcgetwinsize;

use super::text::cut;

/// Between two columns.
const GAP: usize = 2;

/// A column that is cut further says nothing any more.
const NARROWEST: usize = 10;

/// How many characters a line may have: unlimited where nobody looks at it.
pub(crate) fn width() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// Columns, of which some give way where there is no room.
pub(crate) struct Table {
    titles: &'static [&'static str],
    gives_way: &'static [bool],
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(titles: &'static [&'static str], gives_way: &'static [bool]) -> Self {
        Self {
            titles,
            gives_way,
            widths: titles.iter().map(|title| title.len()).collect(),
        }
    }

    /// Makes room for these rows. What was printed before stays as it is.
    pub(crate) fn measure(&mut self, rows: &[Vec<String>]) {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
    }

    /// Narrows what gives way until a line has at most so many characters; whether that worked.
    pub(crate) fn fit(&mut self, most: usize) -> bool {
        while self.whole() > most {
            let widest = (0..self.widths.len())
                .filter(|column| self.gives_way[*column] && self.widths[*column] > NARROWEST)
                .max_by_key(|column| self.widths[*column]);
            let Some(widest) = widest else {
                return false;
            };
            self.widths[widest] -= 1;
        }
        true
    }

    fn whole(&self) -> usize {
        self.widths.iter().sum::<usize>() + GAP * self.widths.len().saturating_sub(1)
    }

    pub(crate) fn head(&self) -> String {
        self.row(self.titles)
    }

    /// One line, without blanks at its end.
    pub(crate) fn row(&self, cells: &[impl AsRef<str>]) -> String {
        let mut line = String::new();
        for ((cell, width), gives_way) in cells.iter().zip(&self.widths).zip(self.gives_way) {
            let cell = cell.as_ref();
            let cell = if *gives_way {
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
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = table();
        let rows = [row(["1", "a name", ""]), row(["12345", "b", "k"])];
        table.measure(&rows);
        assert_eq!(table.head(), "ID     NAME    KEY\n");
        assert_eq!(table.row(&rows[0]), "1      a name\n");
        assert_eq!(table.row(&rows[1]), "12345  b       k\n");
    }

    #[test]
    fn the_widest_gives_way_first_and_ids_never() {
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
