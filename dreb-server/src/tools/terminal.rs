//! What a terminal would show after some output: progress bars overwritten, screens cleared.
//!
//! The screen is as long as the output and has no width. Of a long output only the end is kept, so
//! memory is bounded. Text costs constant time a byte, however long the output was before; erasing
//! costs no more than what is held.

use std::collections::VecDeque;

use vte::Params;

use crate::process::{EscapeHandler, EscapeSplitter};

/// Bytes of output kept at least.
const KEPT: usize = 100 * 1024;
/// Bytes held at most, when the cursor stands in the way of forgetting the first rows.
const HELD: usize = 4 * KEPT;
/// Rows and columns are addressed up to here, so that a short sequence cannot make a huge screen.
const MAX_POSITION: usize = 5000;
const TAB_WIDTH: usize = 8;

/// A terminal without a display.
#[derive(Debug, Default)]
pub struct Terminal {
    splitter: EscapeSplitter,
    screen: Screen,
}

impl Terminal {
    /// Takes the next output.
    pub fn push(&mut self, text: &str) {
        self.splitter.push(text, &mut self.screen);
    }

    /// The end of what is shown, about 100 KB, without the line feed that ends it.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.screen.tail()
    }
}

/// The end of what a terminal shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    /// The text.
    pub text: String,
    /// Whole lines before it that are gone.
    pub dropped_lines: usize,
    /// Bytes before it that are gone.
    pub dropped_bytes: usize,
    /// Bytes of the last line, those that are gone included.
    pub last_line_bytes: usize,
}

#[derive(Debug, Clone, Default)]
struct Row {
    cells: Vec<char>,
    /// Length of the cells in UTF-8.
    bytes: usize,
    /// Bytes cut off in front, because the row is long.
    dropped_bytes: usize,
}

impl Row {
    /// Bytes of the row with its line feed.
    fn held_bytes(&self) -> usize {
        self.bytes + 1
    }

    fn truncate(&mut self, length: usize) {
        if let Some(cut) = self.cells.get(length..) {
            self.bytes -= utf8_len(cut);
            self.cells.truncate(length);
        }
    }
}

fn utf8_len(cells: &[char]) -> usize {
    cells.iter().map(|cell| cell.len_utf8()).sum()
}

#[derive(Debug, Clone, Copy, Default)]
struct Position {
    row: usize,
    column: usize,
}

#[derive(Debug, Default)]
struct Screen {
    /// Rows that were written or fed to, the first at position 0.
    rows: VecDeque<Row>,
    /// Sum of [`Row::held_bytes`].
    bytes: usize,
    dropped_rows: usize,
    dropped_bytes: usize,
    /// May lie outside of the rows; they grow when something is printed.
    cursor: Position,
    saved_cursor: Position,
}

impl Screen {
    fn tail(&self) -> Tail {
        let mut text = String::with_capacity(self.bytes);
        // A last row without text is there because a line feed made it.
        let has_final_feed = self.rows.len() > 1 && self.rows.back().is_some_and(|row| row.cells.is_empty());
        let shown = self.rows.len() - usize::from(has_final_feed);
        for (index, row) in self.rows.range(..shown).enumerate() {
            if index > 0 {
                text.push('\n');
            }
            text.extend(&row.cells);
        }
        let last = shown.checked_sub(1).and_then(|index| self.rows.get(index));
        Tail {
            text,
            dropped_lines: self.dropped_rows,
            dropped_bytes: self.dropped_bytes + self.rows.iter().map(|row| row.dropped_bytes).sum::<usize>(),
            last_line_bytes: last.map_or(0, |row| row.bytes + row.dropped_bytes),
        }
    }

    /// The row of the cursor, made if it is not there.
    fn row(&mut self) -> &mut Row {
        while self.rows.len() <= self.cursor.row {
            self.rows.push_back(Row::default());
            self.bytes += 1;
        }
        &mut self.rows[self.cursor.row]
    }

    /// Applies a change to the row of the cursor.
    fn change_row(&mut self, change: impl FnOnce(&mut Row, usize)) {
        let column = self.cursor.column;
        let row = self.row();
        let before = row.bytes;
        change(row, column);
        let after = row.bytes;
        self.bytes = self.bytes - before + after;
    }

    /// Prints text without control characters.
    fn print(&mut self, text: &str) {
        let mut count = 0;
        self.change_row(|row, column| {
            if row.cells.len() < column {
                row.bytes += column - row.cells.len();
                row.cells.resize(column, ' ');
            }
            let mut characters = text.chars();
            for cell in &mut row.cells[column..] {
                let Some(character) = characters.next() else { break };
                row.bytes = row.bytes - cell.len_utf8() + character.len_utf8();
                *cell = character;
                count += 1;
            }
            let length = row.cells.len();
            row.cells.extend(characters.inspect(|character| row.bytes += character.len_utf8()));
            count += row.cells.len() - length;
        });
        self.cursor.column += count;
        self.shorten_row();
        self.forget();
    }

    /// Forgets the begin of a long row.
    fn shorten_row(&mut self) {
        let row = &mut self.rows[self.cursor.row];
        if row.cells.len() > 2 * KEPT {
            let cut = row.cells.len() - KEPT;
            let cut_bytes = utf8_len(&row.cells[..cut]);
            row.cells.drain(..cut);
            row.bytes -= cut_bytes;
            row.dropped_bytes += cut_bytes;
            self.bytes -= cut_bytes;
            self.cursor.column = self.cursor.column.saturating_sub(cut);
        }
    }

    /// Forgets the first rows when enough is kept after them.
    fn forget(&mut self) {
        while let Some(first) = self.rows.front() {
            let rest = self.bytes - first.held_bytes();
            if rest < KEPT || (self.cursor.row == 0 && self.bytes <= HELD) {
                break;
            }
            self.bytes = rest;
            self.dropped_rows += 1;
            self.dropped_bytes += first.held_bytes() + first.dropped_bytes;
            self.rows.pop_front();
            self.cursor.row = self.cursor.row.saturating_sub(1);
            self.saved_cursor.row = self.saved_cursor.row.saturating_sub(1);
        }
    }

    fn line_feed(&mut self) {
        self.cursor = Position { row: self.cursor.row + 1, column: 0 };
        self.row();
        self.forget();
    }

    /// Moves the cursor by rows; downwards no further than the last row or the limit.
    fn move_rows(&mut self, up: usize, down: usize) {
        let last = self.rows.len().saturating_sub(1).max(MAX_POSITION - 1);
        self.cursor.row = self.cursor.row.saturating_sub(up).saturating_add(down).min(last);
    }

    /// Moves the cursor to the right, no further than the limit.
    fn move_right(&mut self, count: usize) {
        let column = self.cursor.column.saturating_add(count);
        self.cursor.column = column.min(self.cursor.column.max(MAX_POSITION - 1));
    }

    /// Goes to the next tab stop. What is there stays.
    fn tab(&mut self) {
        let next = (self.cursor.column / TAB_WIDTH + 1) * TAB_WIDTH;
        let length = self.rows.get(self.cursor.row).map_or(0, |row| row.cells.len());
        if next <= length.max(MAX_POSITION - 1) {
            self.cursor.column = next;
        } else {
            // In a very long row; moving without a limit could make it huge.
            let blank = " ".repeat(next - self.cursor.column);
            self.print(&blank);
        }
    }

    fn erase_in_row(&mut self, mode: usize) {
        if self.rows.len() <= self.cursor.row {
            return;
        }
        match mode {
            0 => self.change_row(Row::truncate),
            1 => self.change_row(|row, column| {
                let end = row.cells.len().min(column + 1);
                row.bytes = row.bytes - utf8_len(&row.cells[..end]) + end;
                row.cells[..end].fill(' ');
            }),
            2 => self.change_row(|row, _| *row = Row::default()),
            _ => {}
        }
    }

    fn erase_in_screen(&mut self, mode: usize) {
        match mode {
            0 => {
                self.erase_in_row(0);
                if self.cursor.row + 1 < self.rows.len() {
                    self.bytes -= self.rows.range(self.cursor.row + 1..).map(Row::held_bytes).sum::<usize>();
                    self.rows.truncate(self.cursor.row + 1);
                }
            }
            1 => {
                let end = self.rows.len().min(self.cursor.row);
                for row in self.rows.range_mut(..end) {
                    self.bytes -= row.bytes;
                    *row = Row::default();
                }
                self.erase_in_row(1);
            }
            // A cleared screen begins at the top; blank lines down to the cursor would mean nothing.
            2 | 3 => *self = Self::default(),
            _ => {}
        }
    }
}

impl EscapeHandler for Screen {
    fn text(&mut self, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            let run = rest.find(is_control).unwrap_or(rest.len());
            if run > 0 {
                self.print(&rest[..run]);
            }
            rest = &rest[run..];
            let Some(control) = rest.chars().next() else { return };
            rest = &rest[control.len_utf8()..];
            match control {
                '\n' | '\u{b}' | '\u{c}' => self.line_feed(),
                '\r' => self.cursor.column = 0,
                '\u{8}' => self.cursor.column = self.cursor.column.saturating_sub(1),
                '\t' => self.tab(),
                _ => {}
            }
        }
    }

    fn control_sequence(&mut self, parameters: &Params, action: char) {
        let parameter = |index: usize| {
            parameters.iter().nth(index).and_then(|values| values.first()).map_or(0, |&value| usize::from(value))
        };
        let count = parameter(0).max(1);
        match action {
            'A' => self.move_rows(count, 0),
            'B' | 'e' => self.move_rows(0, count),
            'C' | 'a' => self.move_right(count),
            'D' => self.cursor.column = self.cursor.column.saturating_sub(count),
            'E' => {
                self.move_rows(0, count);
                self.cursor.column = 0;
            }
            'F' => {
                self.move_rows(count, 0);
                self.cursor.column = 0;
            }
            'G' | '`' => self.cursor.column = (count - 1).min(MAX_POSITION - 1),
            'd' => self.move_rows(self.cursor.row, count - 1),
            'H' | 'f' => {
                self.move_rows(self.cursor.row, count - 1);
                self.cursor.column = (parameter(1).max(1) - 1).min(MAX_POSITION - 1);
            }
            'J' => self.erase_in_screen(parameter(0)),
            'K' => self.erase_in_row(parameter(0)),
            's' => self.saved_cursor = self.cursor,
            'u' => self.cursor = self.saved_cursor,
            _ => {}
        }
    }

    fn escape(&mut self, action: u8) {
        match action {
            b'7' => self.saved_cursor = self.cursor,
            b'8' => self.cursor = self.saved_cursor,
            b'D' => self.move_rows(0, 1),
            b'E' => self.line_feed(),
            b'M' => self.move_rows(1, 0),
            b'c' => self.erase_in_screen(2),
            _ => {}
        }
    }
}

/// Characters that take no cell.
fn is_control(character: char) -> bool {
    character.is_control() || matches!(character, '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(output: &str) -> String {
        let mut terminal = Terminal::default();
        terminal.push(output);
        terminal.tail().text
    }

    #[test]
    fn the_screen_shows_what_a_terminal_shows() {
        for (output, expected) in [
            ("", ""),
            ("\n", ""),
            ("\n\n", "\n"),
            ("a\nb\n", "a\nb"),
            ("a  \r\nb", "a  \nb"),
            ("10%\r20%\r100%\ndone\n", "100%\ndone"),
            ("long line\rab", "abng line"),
            ("é1\rx", "x1"),
            ("ab\u{8}c", "ac"),
            ("a\tb\tc", "a       b       c"),
            ("12345678\tx", "12345678        x"),
            ("abcdefghij\r\tX", "abcdefghXj"),
            ("a\u{0}\u{7}\u{fff9}b", "ab"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("50%\r\u{1b}[Kdone", "done"),
            ("line\n50%\r\u{1b}[2K", "line"),
            ("abcdef\u{1b}[3D\u{1b}[1K", "    ef"),
            ("a\nb\nc\u{1b}[2A\u{1b}[JX", "aX"),
            ("a\nb\nc\u{1b}[1J", "\n\n "),
            ("1\n2\n3\u{1b}[2Ax\u{1b}[Bz", "1x\n2 z\n3"),
            ("1\n2\u{1b}[Fx\u{1b}[Ey", "x\ny"),
            ("a\u{1b}[3;4Hb", "a\n\n   b"),
            ("\u{1b}[5Gx\u{1b}[2Cy", "    x  y"),
            ("\u{1b}[2dx", "\nx"),
            ("old\n\u{1b}[H\u{1b}[2Jnew", "new"),
            ("old\n\u{1b}cnew", "new"),
            ("a\u{1b}7bc\u{1b}8X", "aXc"),
            ("ab\u{1b}[s\ncd\u{1b}[uX", "abX\ncd"),
            ("a\nb\u{1b}MX", "aX\nb"),
            ("a\u{1b}[?25lb\u{1b}]0;title\u{7}c", "abc"),
        ] {
            assert_eq!(shown(output), expected, "{output:?}");
        }
    }

    #[test]
    fn positions_are_capped() {
        assert_eq!(shown("\u{1b}[60000Cx"), format!("{}x", " ".repeat(4999)));
        assert_eq!(shown("\u{1b}[60000;60000Hx"), format!("{}{}x", "\n".repeat(4999), " ".repeat(4999)));
        assert_eq!(shown("\u{1b}[60000Bx\u{1b}[60000By").lines().count(), 5000);
        let long = "x".repeat(6000);
        assert_eq!(shown(&format!("{long}\u{1b}[Cy\tz")), format!("{long}y       z"));
    }

    #[test]
    fn the_end_of_a_long_output_is_kept_and_the_rest_counted() {
        let mut terminal = Terminal::default();
        let mut all = String::new();
        for number in 0..50_000 {
            let line = format!("line {number}\n");
            terminal.push(&line);
            all.push_str(&line);
        }
        let tail = terminal.tail();
        assert!(tail.text.len() >= KEPT - 2 && tail.text.len() < KEPT + 100);
        assert_eq!(tail.dropped_bytes + tail.text.len() + 1, all.len());
        assert_eq!(tail.dropped_lines + tail.text.lines().count(), 50_000);
        assert_eq!(all[tail.dropped_bytes..all.len() - 1], tail.text);
        assert_eq!(tail.last_line_bytes, "line 49999".len());
    }

    #[test]
    fn of_a_long_line_the_end_is_kept() {
        let mut terminal = Terminal::default();
        terminal.push("first\n");
        for _ in 0..1000 {
            terminal.push(&"é".repeat(1000));
        }
        terminal.push("end");
        let tail = terminal.tail();
        assert!(tail.text.ends_with("éend"));
        assert!(tail.text.chars().count() <= 2 * KEPT);
        assert_eq!(tail.last_line_bytes, 2_000_003);
        assert_eq!(tail.dropped_lines, 1);
        assert_eq!(tail.dropped_bytes + tail.text.len(), "first\n".len() + 2_000_003);
    }

    #[test]
    fn memory_is_bounded_whatever_the_cursor_does() {
        let mut terminal = Terminal::default();
        // Wide rows from the bottom to the top, below the cursor.
        for row in (1..=2000).rev() {
            terminal.push(&format!("\u{1b}[{row};5000Hx"));
            assert!(terminal.screen.bytes <= HELD + KEPT);
        }
        // Many short sequences on a long line.
        terminal.push(&"y".repeat(300_000));
        terminal.push(&"\u{1b}[A\u{1b}[Bz\r".repeat(100_000));
        assert!(terminal.screen.bytes <= HELD + KEPT);
    }

    fn counted(screen: &Screen) -> usize {
        screen.rows.iter().map(|row| utf8_len(&row.cells) + 1).sum()
    }

    proptest::proptest! {
        #[test]
        fn lengths_are_counted_right(text in "([a-zé\n\r\t\u{8}]|\u{1b}\\[[0-9]?[0-9]?[A-HJKdsu]|\u{1b}[78cDEM]){0,80}") {
            let mut terminal = Terminal::default();
            terminal.push(&text);
            proptest::prop_assert_eq!(terminal.screen.bytes, counted(&terminal.screen));
        }

        #[test]
        fn plain_text_is_shown_as_it_is(text in "[a-zé\u{1f600} \n]{0,80}", cut in 0usize..80) {
            let cut = text.char_indices().nth(cut).map_or(text.len(), |(index, _)| index);
            let mut terminal = Terminal::default();
            terminal.push(&text[..cut]);
            terminal.push(&text[cut..]);
            proptest::prop_assert_eq!(terminal.tail().text, text.strip_suffix('\n').unwrap_or(&text));
        }
    }
}
