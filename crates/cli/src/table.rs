//! Tables and colours for a terminal.

use std::io::IsTerminal as _;
use unicode_width::UnicodeWidthStr as _;

/// Blanks between columns.
const GAP: &str = "  ";
/// Before what belongs to the line above.
const INDENT: &str = "  ";

/// Whether text is coloured, and how wide it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    /// Whether escape codes are written at all.
    pub on: bool,
    /// The columns of the terminal, if it is one.
    pub columns: Option<usize>,
}

impl Paint {
    /// No colours, and as wide as need be.
    pub const OFF: Paint = Paint { on: false, columns: None };

    /// The width of the terminal when standard output is one, and colours when standard output is a terminal that has some, and the variable `NO_COLOR` is empty or not set
    /// (<https://no-color.org>).
    pub fn of_stdout() -> Paint {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = std::io::stdout().is_terminal();
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|_| is_terminal);
        // Some terminals don't know their size and say zero.
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        Paint { on: !refused && !dumb && is_terminal, columns }
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
    /// For what is new.
    pub fn good(self, text: &str) -> String {
        self.code("32", text)
    }
    /// For what is wrong.
    pub fn alarm(self, text: &str) -> String {
        self.code("31", text)
    }

    /// The text with lines that are too long continued on the next one, after a blank.
    pub fn fold(self, text: &str) -> String {
        let Some(columns) = self.columns else { return text.to_owned() };
        text.lines().map(|line| fold_line(line, columns)).collect()
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

impl Tone {
    fn paint(self, paint: Paint, text: &str) -> String {
        match self {
            Tone::Plain => text.to_owned(),
            Tone::Warn => paint.warn(text),
            Tone::Dim => paint.dim(text),
        }
    }
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

    /// The lines, each with its end. Where the table is too wide for the terminal, each row is a paragraph: its first
    /// cell, and beneath it the others with their titles.
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
        let width = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        if paint.columns.is_some_and(|columns| columns < width) {
            return self.rows.iter().map(|row| self.paragraph(row, paint)).collect();
        }
        let titles: Vec<Cell> = self.columns.iter().map(|(title, _)| Cell::new(title)).collect();
        let mut text = self.line(&titles, &widths, |text, _| paint.bold(text));
        for row in &self.rows {
            text.push_str(&self.line(row, &widths, |text, tone| tone.paint(paint, text)));
        }
        text
    }

    /// A row for a narrow terminal.
    fn paragraph(&self, row: &[Cell], paint: Paint) -> String {
        let mut cells = self.columns.iter().zip(row);
        let first = cells.next().map(|(_, cell)| paint.bold(&cell.text)).unwrap_or_default();
        let mut text = format!("{first}\n");
        let mut line = String::new();
        let mut taken = 0;
        for ((title, _), cell) in cells.filter(|(_, cell)| !cell.text.is_empty()) {
            let width = title.width() + 1 + cell.text.width();
            if taken > 0 && paint.columns.is_some_and(|columns| taken + GAP.len() + width > columns) {
                text.push_str(&format!("{line}\n"));
                (line, taken) = (String::new(), 0);
            }
            let gap = if taken == 0 { INDENT } else { GAP };
            line.push_str(&format!("{gap}{} {}", paint.dim(title), cell.tone.paint(paint, &cell.text)));
            taken += gap.len() + width;
        }
        if !line.is_empty() {
            text.push_str(&format!("{line}\n"));
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

/// One line in as many as it needs. What is longer than a line by itself is cut by the terminal.
fn fold_line(line: &str, columns: usize) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for word in line.split_inclusive(' ') {
        let width = visible(word.trim_end_matches(' '));
        if taken > 0 && taken + width > columns {
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
            text.push_str(INDENT);
            taken = INDENT.len();
        }
        text.push_str(word);
        taken += visible(word);
    }
    text.push('\n');
    text
}

/// The columns that a text with colours takes.
fn visible(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let plain = parts.next().map_or(0, |text| text.width());
    plain + parts.map(|part| part.split_once('m').map_or(0, |(_, text)| text.width())).sum::<usize>()
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
        let painted = table().render(Paint { on: true, columns: None });
        assert!(painted.contains("\x1b[33m12345\x1b[0m"), "{painted:?}");
        let mut stripped = painted;
        for code in ["\x1b[1m", "\x1b[33m", "\x1b[0m"] {
            stripped = stripped.replace(code, "");
        }
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_table_that_is_too_wide_becomes_paragraphs() {
        let narrow = |columns| Paint { on: false, columns: Some(columns) };
        assert_eq!(table().render(narrow(28)), table().render(Paint::OFF), "it fits");
        let folded = "日本\n  USED 7  KIND shares\nopenai/gpt-4o\n  USED 12345\n";
        assert_eq!(table().render(narrow(27)), folded);
        assert_eq!(
            table().render(narrow(12)),
            "日本\n  USED 7\n  KIND shares\nopenai/gpt-4o\n  USED 12345\n"
        );
        let painted = table().render(Paint { on: true, columns: Some(27) });
        assert!(painted.lines().all(|line| visible(line) <= 27), "{painted:?}");
    }

    #[test]
    fn long_lines_are_continued_with_their_colours() {
        let paint = Paint { on: true, columns: Some(12) };
        let text = format!("{} one two three\nshort\n\n", paint.bold("group a"));
        assert_eq!(paint.fold(&text), "\x1b[1mgroup a\x1b[0m one\n  two three\nshort\n\n");
        assert_eq!(Paint::OFF.fold(&text), text);
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let mut table = Table::new(&[("NAME", Side::Left)]);
        table.row(vec![Cell::new("a\x1b[2Jb\n")]);
        assert_eq!(table.render(Paint::OFF), "NAME\na\u{fffd}[2Jb\u{fffd}\n");
    }
}
