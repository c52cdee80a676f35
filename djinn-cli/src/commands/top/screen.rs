//! The terminal as `djinn top` uses it: the other screen, keys one by one, and cells as escape sequences.

use crate::terminal::{self, Hushed};
use anyhow::{Context, Result};
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::text::Span;
use rustix::termios::tcgetwinsize;
use std::io::{self, Stdout, Write};

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// The terminal, which is as before once this is dropped.
pub(super) struct Screen {
    out: Stdout,
    /// Colours are not wanted.
    plain: bool,
    _hushed: Hushed,
}

impl Screen {
    pub(super) fn enter() -> Result<Self> {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        let mut screen = Screen { out: io::stdout(), plain, _hushed: terminal::hush() };
        screen.write(ENTER).and_then(|()| screen.out.flush()).context("the terminal")?;
        Ok(screen)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.write(LEAVE).and_then(|()| self.out.flush());
    }
}

/// The number of a colour among the 256 of terminals; none for the terminal's own.
fn number(colour: Color) -> Option<u8> {
    match colour {
        Color::Indexed(number) => Some(number),
        _ => None,
    }
}

impl Backend for Screen {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        let mut text = String::new();
        let (mut next, mut style) = (None, None);
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                text += &format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1);
            }
            let own = (cell.fg, cell.bg, cell.modifier);
            if style != Some(own) {
                text += "\x1b[0";
                for (modifier, code) in
                    [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")]
                {
                    text += if cell.modifier.contains(modifier) { code } else { "" };
                }
                for (colour, code) in [(cell.fg, 38), (cell.bg, 48)] {
                    if let Some(number) = number(colour).filter(|_| !self.plain) {
                        text += &format!(";{code};5;{number}");
                    }
                }
                text.push('m');
                style = Some(own);
            }
            text += cell.symbol();
            // A wide symbol takes places that are not drawn.
            next = Some((x + Span::raw(cell.symbol()).width() as u16, y));
        }
        self.write(&text)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.write("\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.write("\x1b[?25h")
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        // The cursor is hidden, so its place does not matter.
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.write(&format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.write(match region {
            ClearType::All => "\x1b[0m\x1b[2J",
            ClearType::AfterCursor => "\x1b[0J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[0K",
        })
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(&self.out)?;
        // A terminal that does not say has the size of old ones.
        match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => Ok(Size::new(80, 24)),
            (columns, rows) => Ok(Size::new(columns, rows)),
        }
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
