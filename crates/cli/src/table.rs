//! Tables and colours for a terminal.

use std::io::IsTerminal as _;
use unicode_width::UnicodeWidthStr as _;

/// Blanks between columns.
const GAP: &str = "  ";

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    /// Whether escape codes are written at all.
    pub on: bool,
}

impl Paint {
    /// No colours.
    pub const OFF: Paint = Paint { on: false };

    /// Colours when standard output is a terminal that has some, and the variable `NO_COLOR` is empty or not set
    /// (<https://no-color.org>).
    pub fn of_stdout() -> Paint {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { on: !refused && !dumb && std::io::stdout().is_terminal() }
    }

    /// For headings.
    pub fn bold(self, text: &str) -> String {
        self.code("1", text)
    }
    /// For what matters less.
    pub fn dim(self, text: &str) -> String {
        self.code("2", text)
    }
    /// For what wants attention.
    pub fn warn(self, text: &str) -> String {
        self.code("33", text)
    }
    /// For what is wrong.
    pub fn alarm(self, text: &str) -> String {
        self.code("31", text)
    }

    fn code(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// On which side a column is filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// How a cell is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// Wants attention.
    Warn,
    /// Matters less.
    Dim,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with this text.
    pub fn new(text: impl ToString) -> Cell {
        Cell { text: printable(&text.to_string()), tone: Tone::Plain }
    }
    /// A cell that wants attention when `wanted`.
    pub fn warn_if(text: impl ToString, wanted: bool) -> Cell {
        Cell { tone: if wanted { Tone::Warn } else { Tone::Plain }, ..Cell::new(text) }
    }
    /// A cell that matters less.
    pub fn dim(text: impl ToString) -> Cell {
        Cell { tone: Tone::Dim, ..Cell::new(text) }
    }
}

/// Rows under a heading, aligned by the width that a terminal gives to their characters.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&'static str, Side)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell per column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, each with its end.
    pub fn render(&self, paint: Paint) -> String {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, (title, _))| {
                let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.text.width());
                cells.max().unwrap_or(0).max(title.width())
            })
            .collect();
        let titles: Vec<Cell> = self.columns.iter().map(|(title, _)| Cell::new(title)).collect();
        let mut text = self.line(&titles, &widths, |text, _| paint.bold(text));
        for row in &self.rows {
            text.push_str(&self.line(row, &widths, |text, tone| match tone {
                Tone::Plain => text.to_owned(),
                Tone::Warn => paint.warn(text),
                Tone::Dim => paint.dim(text),
            }));
        }
        text
    }

    fn line(&self, cells: &[Cell], widths: &[usize], show: impl Fn(&str, Tone) -> String) -> String {
        let mut line = String::new();
        let last = cells.len().saturating_sub(1);
        for (index, ((cell, width), (_, side))) in cells.iter().zip(widths).zip(&self.columns).enumerate() {
            let pad = " ".repeat(width.saturating_sub(cell.text.width()));
            let shown = show(&cell.text, cell.tone);
            match side {
                Side::Right => line.push_str(&format!("{pad}{shown}")),
                // No blanks at the end of a line.
                Side::Left if index == last => line.push_str(&shown),
                Side::Left => line.push_str(&format!("{shown}{pad}")),
            }
            if index < last {
                line.push_str(GAP);
            }
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// Text from elsewhere without what could steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("NAME", Side::Left), ("USED", Side::Right), ("KIND", Side::Left)]);
        table.row(vec![Cell::new("日本"), Cell::new(7), Cell::new("shares")]);
        table.row(vec![Cell::new("openai/gpt-4o"), Cell::warn_if("12345", true), Cell::new("")]);
        table
    }

    #[test]
    fn wide_characters_and_colours_do_not_shift_columns() {
        let plain = "NAME            USED  KIND\n\
                     日本               7  shares\n\
                     openai/gpt-4o  12345\n";
        assert_eq!(table().render(Paint::OFF), plain);
        let painted = table().render(Paint { on: true });
        assert!(painted.contains("\x1b[33m12345\x1b[0m"), "{painted:?}");
        let mut stripped = painted;
        for code in ["\x1b[1m", "\x1b[33m", "\x1b[0m"] {
            stripped = stripped.replace(code, "");
        }
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let mut table = Table::new(&[("NAME", Side::Left)]);
        table.row(vec![Cell::new("a\x1b[2Jb\n")]);
        assert_eq!(table.render(Paint::OFF), "NAME\na\u{fffd}[2Jb\u{fffd}\n");
    }
}
