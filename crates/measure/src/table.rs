//! Tables for people.

use std::fmt;

/// Rows of cells under a header: the first column is aligned left, figures right.
#[derive(Debug)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with this header.
    pub fn new(header: &[impl ToString]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The header, and the rows below it.
    pub fn parts(&self) -> (&[String], &[Vec<String>]) {
        let (header, rows) = self.rows.split_first().expect("a table has a header");
        (header, rows)
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
        }
        Ok(())
    }
}

/// Returns the header of a Markdown table, and the line below it. Bars separate the names in `columns`.
pub fn markdown_header(columns: &str) -> String {
    format!("| {columns} |\n|{}\n", "---|".repeat(columns.split('|').count()))
}

/// A row of a Markdown table, with its newline.
pub fn markdown_row(title: impl fmt::Display, cells: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let mut row = format!("| {title} |");
    cells.into_iter().for_each(|cell| row += &format!(" {cell} |"));
    row + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["mode", "seconds"]);
        table.row(vec!["patched".into(), "1.5".into()]);
        assert_eq!(table.to_string(), "mode     seconds\npatched      1.5");
    }

    #[test]
    fn markdown_has_a_line_below_its_header() {
        assert_eq!(markdown_header("side | ns"), "| side | ns |\n|---|---|\n");
        assert_eq!(markdown_row("a", [1.5, 2.0]), "| a | 1.5 | 2 |\n");
    }
}
