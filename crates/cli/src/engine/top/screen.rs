//! The terminal: keys, and drawing of what [`super::text`] makes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line as Styled, Text};
use ratatui::widgets::{Paragraph, Wrap};
use terminal::signals;

use super::rates::{Look, Rates};
use super::text::{self, Columns, Line, Mark};

/// Intervals that + and - lead to, in seconds.
const FASTEST: f64 = 0.1;
const SLOWEST: f64 = 60.0;
/// How long a signal may wait until it is noticed.
const LOOK: Duration = Duration::from_millis(100);

pub struct Screen {
    pub interval: f64,
    pub tree: bool,
    paused: bool,
    scroll: u16,
    /// Which process is shown; all if there is none of that number.
    process: Option<usize>,
}

/// What a key asks for.
#[derive(Debug, PartialEq)]
enum Turn {
    Quit,
    Draw,
}

impl Screen {
    pub fn new(interval: f64, tree: bool) -> Self {
        Self { interval, tree, paused: false, scroll: 0, process: None }
    }

    pub fn run(&mut self, root: &Path, only: Option<u32>) -> Result<()> {
        let mut before = Look::take(root, only)?;
        // The terminal must be what it was, whoever ends this. Ctrl-C itself arrives as a key.
        signals::catch_interrupts();
        let mut terminal = ratatui::try_init().context("cannot use this terminal; try --once")?;
        let outcome = (|| {
            // A short first interval, so that figures are there at once.
            let mut due = Instant::now() + Duration::from_secs_f64(self.interval.min(0.2));
            let mut rates = before.since(&before);
            terminal.draw(|frame| self.draw(frame, &rates))?;
            while !signals::interrupted() {
                if event::poll(due.saturating_duration_since(Instant::now()).min(LOOK))? {
                    match event::read()? {
                        Event::Key(key)
                            if key.kind == KeyEventKind::Press
                                && self.key(key, &rates) == Turn::Quit =>
                        {
                            break;
                        }
                        // A key, or another size.
                        _ => _ = terminal.draw(|frame| self.draw(frame, &rates))?,
                    }
                }
                if Instant::now() >= due {
                    due = Instant::now() + Duration::from_secs_f64(self.interval);
                    if !self.paused {
                        let now = Look::take(root, only)?;
                        rates = now.since(&before);
                        before = now;
                    }
                    terminal.draw(|frame| self.draw(frame, &rates))?;
                }
            }
            Ok(())
        })();
        ratatui::restore();
        outcome
    }

    fn key(&mut self, key: KeyEvent, rates: &Rates) -> Turn {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Turn::Quit;
            }
            KeyCode::Char('q') | KeyCode::Esc => return Turn::Quit,
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            KeyCode::Char('t') => self.tree = !self.tree,
            KeyCode::Char('+') => self.interval = (self.interval * 2.0).min(SLOWEST),
            KeyCode::Char('-') => self.interval = (self.interval / 2.0).max(FASTEST),
            KeyCode::Char('n') => {
                let next = self.process.map_or(0, |number| number + 1);
                self.process = (next < rates.processes.len()).then_some(next);
                self.scroll = 0;
            }
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(20),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(20),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        Turn::Draw
    }

    fn draw(&self, frame: &mut Frame, rates: &Rates) {
        let [status, middle, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        let shown = rates.processes.iter().enumerate();
        let shown =
            shown.filter(|(number, _)| self.process.is_none_or(|process| process == *number));
        let view = if self.tree { text::tree } else { text::table };
        let lines: Vec<Line> = shown.flat_map(|(_, process)| view(process)).collect();
        let columns = Columns::of(&lines, middle.width.into());
        let last = (lines.len() as u16).saturating_sub(1);
        let text = Text::from_iter(lines.into_iter().map(|line| styled(line, &columns)));
        let body =
            Paragraph::new(text).wrap(Wrap { trim: false }).scroll((self.scroll.min(last), 0));
        frame.render_widget(Paragraph::new(self.status(rates)).reversed(), status);
        frame.render_widget(body, middle);
        frame.render_widget(Paragraph::new(KEYS).reversed(), keys);
    }

    fn status(&self, rates: &Rates) -> String {
        let found = match rates.processes.len() {
            0 => "no packet engine runs here".to_string(),
            1 => "1 engine process".into(),
            count => format!("{count} engine processes"),
        };
        let paused = if self.paused { "  PAUSED" } else { "" };
        format!("shortwire engine top  {found}  every {} s{paused}", self.interval)
    }
}

const KEYS: &str = "q quit  space pause  t tree  +/- interval  n next process  arrows scroll";

fn styled(line: Line, columns: &Columns) -> Styled<'static> {
    match line {
        Line::Title(text) => Styled::from(text).bold(),
        Line::Header(cells) => {
            Styled::from(columns.line(&cells)).style(Style::new().fg(Color::Cyan))
        }
        Line::Row(cells, Mark::Alarm) => {
            Styled::from(columns.line(&cells)).style(Style::new().fg(Color::Red))
        }
        Line::Row(cells, Mark::None) => Styled::from(columns.line(&cells)),
        Line::Text(text) => Styled::from(text),
        Line::Blank => Styled::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::top::rates::{LinkRates, ProcessRates, Totals};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn rates() -> Rates {
        let link = LinkRates {
            name: "a.tx -> b.rx".into(),
            packets: 2e6,
            bytes: 120e6,
            drops: 1e6,
            total: Totals { packets: 37_870_464, bytes: 0, drops: 0 },
        };
        let process = ProcessRates {
            pid: 42,
            command: "engine x".into(),
            engines: vec![],
            links: vec![link],
            apps: vec![],
        };
        Rates { seconds: 1.0, processes: vec![process] }
    }

    fn drawn(screen: &Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 8)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &rates())).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Turn {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE), &rates())
    }

    #[test]
    fn links_are_drawn_with_their_loss() {
        let text = drawn(&Screen::new(1.0, false));
        for part in [
            "1 engine process",
            "42  engine x",
            "a.tx -> b.rx",
            "2.00M",
            "960M",
            "1.00M",
            "33.3%",
            "37,870,464",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn keys_pause_turn_and_end() {
        let mut screen = Screen::new(1.0, false);
        assert_eq!(press(&mut screen, KeyCode::Char(' ')), Turn::Draw);
        assert!(drawn(&screen).contains("PAUSED"));
        press(&mut screen, KeyCode::Char('t'));
        press(&mut screen, KeyCode::Char('+'));
        assert_eq!((screen.tree, screen.interval), (true, 2.0));
        press(&mut screen, KeyCode::Char('n'));
        assert_eq!(screen.process, Some(0));
        press(&mut screen, KeyCode::Char('n'));
        assert_eq!(screen.process, None);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Turn::Quit);
    }
}
