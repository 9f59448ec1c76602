//! The terminal: keys, and drawing of what [`super::text`] makes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use terminal::signals;

use super::look::{Change, Look};
use super::{By, Sort, groups, text};
use crate::ss::Filter;

/// Intervals that + and - lead to, in seconds.
const FASTEST: f64 = 0.1;
const SLOWEST: f64 = 60.0;
/// How long a signal may wait until it is noticed.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct Screen {
    interval: f64,
    by: By,
    sort: Sort,
    paused: bool,
    scroll: usize,
}

/// What a key asks for.
#[derive(Debug, PartialEq)]
enum Turn {
    Quit,
    Draw,
}

impl Screen {
    pub fn new(interval: f64, by: By, sort: Sort) -> Self {
        Self { interval, by, sort, paused: false, scroll: 0 }
    }

    pub fn run(&mut self, filter: &Filter) -> Result<()> {
        let mut before = Look::take(filter);
        // The terminal must be what it was, whoever ends this. Ctrl-C itself arrives as a key.
        signals::catch_interrupts();
        let mut terminal = ratatui::try_init().context("cannot use this terminal; try --once")?;
        let outcome = (|| {
            // A short first interval, so that figures are there at once.
            let mut due = Instant::now() + Duration::from_secs_f64(self.interval.min(0.2));
            let mut change = before.since(&before);
            terminal.draw(|frame| self.draw(frame, &change))?;
            while !signals::interrupted() {
                if event::poll(due.saturating_duration_since(Instant::now()).min(PATIENCE))? {
                    match event::read()? {
                        Event::Key(key)
                            if key.kind == KeyEventKind::Press && self.key(key) == Turn::Quit =>
                        {
                            break;
                        }
                        // A key, or another size.
                        _ => _ = terminal.draw(|frame| self.draw(frame, &change))?,
                    }
                }
                if Instant::now() >= due {
                    due = Instant::now() + Duration::from_secs_f64(self.interval);
                    if !self.paused {
                        let now = Look::take(filter);
                        change = now.since(&before);
                        before = now;
                    }
                    terminal.draw(|frame| self.draw(frame, &change))?;
                }
            }
            Ok(())
        })();
        ratatui::restore();
        outcome
    }

    fn key(&mut self, key: KeyEvent) -> Turn {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Turn::Quit;
            }
            KeyCode::Char('q') | KeyCode::Esc => return Turn::Quit,
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            KeyCode::Char('g') => {
                self.by = next(self.by);
                self.scroll = 0;
            }
            KeyCode::Char('s') => self.sort = next(self.sort),
            KeyCode::Char('+') => self.interval = (self.interval * 2.0).min(SLOWEST),
            KeyCode::Char('-') => self.interval = (self.interval / 2.0).max(FASTEST),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(20),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(20),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        Turn::Draw
    }

    fn draw(&mut self, frame: &mut Frame, change: &Change) {
        let [status, head, middle, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let rows = groups::rows(change, self.by, self.sort);
        let mut lines = text::lines(&rows, self.by, Some(middle.width.into())).into_iter();
        let heading = lines.next().unwrap_or_default();
        self.scroll = self.scroll.min(rows.len().saturating_sub(1));
        let body = lines.zip(&rows).skip(self.scroll).map(|(line, row)| {
            let style = if row.tcp > 0 { Style::new().fg(Color::Yellow) } else { Style::new() };
            Line::from(line.trim_end().to_string()).style(style)
        });
        frame.render_widget(Paragraph::new(self.status(change)).reversed(), status);
        let cyan = Style::new().fg(Color::Cyan);
        frame.render_widget(Paragraph::new(heading.trim_end().to_string()).style(cyan), head);
        frame.render_widget(Paragraph::new(Text::from_iter(body)), middle);
        frame.render_widget(Paragraph::new(KEYS).reversed(), keys);
    }

    fn status(&self, change: &Change) -> String {
        let paused = if self.paused { "PAUSED  " } else { "" };
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map_or_else(String::new, |value| value.get_name().to_string())
        };
        format!(
            "shortwire top  {paused}by {}, {}  every {} s  {}",
            name(&|| self.by.to_possible_value()),
            name(&|| self.sort.to_possible_value()),
            self.interval,
            change.summary.text(),
        )
    }
}

const KEYS: &str = "q quit  space pause  g group  s sort  +/- interval  arrows scroll";

/// The one behind it, or the first.
fn next<T: ValueEnum + PartialEq + Copy>(value: T) -> T {
    let all = T::value_variants();
    let at = all.iter().position(|other| *other == value).unwrap_or(0);
    all[(at + 1) % all.len()]
}

#[cfg(test)]
mod tests {
    use super::super::groups::tests::change;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &change())).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Turn {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn views_are_drawn_and_keys_turn_them() {
        let mut screen = Screen::new(1.0, By::Connection, Sort::Bytes);
        let has = |screen: &mut Screen, parts: &[&str]| {
            let text = drawn(screen);
            for part in parts {
                assert!(text.contains(part), "{part} is missing in\n{text}");
            }
        };
        has(&mut screen, &["by connection, bytes", "12/redis", "TCP PEER_NO_SMC", "q quit"]);
        press(&mut screen, KeyCode::Char('g'));
        press(&mut screen, KeyCode::Char('s'));
        has(&mut screen, &["by program, messages", "memory", "why"]);
        press(&mut screen, KeyCode::Char('g'));
        press(&mut screen, KeyCode::Char(' '));
        press(&mut screen, KeyCode::Char('+'));
        has(&mut screen, &["PAUSED", "by pair", "every 2 s", "conns"]);
        (0..9).for_each(|_| _ = press(&mut screen, KeyCode::Down));
        has(&mut screen, &["program"]);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Turn::Quit);
    }
}
