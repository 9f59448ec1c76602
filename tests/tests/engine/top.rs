//! `shortwire engine top` on a terminal: what it draws, its keys, and the terminal that it leaves
//! behind.
#![allow(unsafe_code)]

use std::num::NonZero;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use rustix::process::{Pid, kill_process};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::*;

const NETWORK: &str = "links = [\"src.output -> tee.input\", \"tee.a -> sink.input\", \"tee.b -> far.input\"]\n[apps]\n\
    src = \"Source\"\ntee = \"Tee\"\nsink = \"Sink\"\nfar = { kind = \"Sink\", thread = 1 }\n";

/// A terminal with a program on it.
struct Terminal {
    master: OwnedFd,
    /// Kept open, so that the settings that the program leaves can be seen.
    slave: OwnedFd,
    child: Child,
    screen: vt100::Parser,
}

fn some(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("rows and columns")
}

impl Terminal {
    fn start(case: &Case, rows: u16, columns: u16, words: &[&str]) -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let (name, settings) = (std::ptr::null_mut(), std::ptr::null());
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two descriptors are written, one size is read, the other arguments may be null.
        let made =
            unsafe { libc::openpty(&mut master, &mut slave, name, settings, &raw const size) };
        assert_eq!(made, 0, "openpty: {}", std::io::Error::last_os_error());
        // SAFETY: both were made just now and are nobody else's.
        let [master, slave] = [master, slave].map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let mut command = command(words);
        command.env("SHORTWIRE_RUN_DIR", case.dir().join("run")).env("TERM", "xterm-256color");
        command.stdin(end()).stdout(end()).stderr(end());
        let own = || {
            rustix::process::setsid()?;
            // SAFETY: an ioctl without memory: standard input becomes the terminal of this session.
            match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
                0 => Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: system calls only, no memory is touched between fork and exec.
        unsafe { command.pre_exec(own) };
        let child = command.spawn().expect("start on a terminal");
        Terminal { master, slave, child, screen: vt100::Parser::new(some(rows), some(columns), 0) }
    }

    /// Reads what the program has drawn by now.
    fn look(&mut self) {
        let mut poll = [rustix::event::PollFd::new(&self.master, rustix::event::PollFlags::IN)];
        let wait = millis(20).try_into().expect("a short time");
        if rustix::event::poll(&mut poll, Some(&wait)).expect("poll") == 0 {
            return;
        }
        let mut bytes = [0; 65536];
        if let Ok(got) = rustix::io::read(&self.master, &mut bytes[..]) {
            self.screen.process(&bytes[..got]);
        }
    }

    fn rows(&self) -> Vec<String> {
        let (_, columns) = self.screen.screen().size();
        self.screen.screen().rows(0, columns.get()).collect()
    }

    fn shows(&mut self, what: &str, condition: impl Fn(&[String]) -> bool) -> Vec<String> {
        let end = Deadline::within(secs(60));
        loop {
            self.look();
            let rows = self.rows();
            if condition(&rows) {
                return rows;
            }
            assert!(!end.is_over(), "{what} is not shown:\n{}", rows.join("\n"));
        }
    }

    fn has(&mut self, part: &str) -> Vec<String> {
        self.shows(part, |rows| rows.iter().any(|row| row.contains(part)))
    }

    fn press(&self, keys: &str) {
        rustix::io::write(&self.master, keys.as_bytes()).expect("a key");
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).expect("another size");
        self.screen.screen_mut().set_size(some(rows), some(columns));
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave)
            .expect("settings")
            .local_modes
            .contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn is_drawn_on(&self) -> bool {
        let screen = self.screen.screen();
        screen.alternate_screen() || screen.hide_cursor()
    }

    /// The program must end well and leave the terminal as it was.
    fn ends(mut self) {
        let end = Deadline::within(secs(60));
        let status = loop {
            self.look();
            if let Some(status) = self.child.try_wait().expect("waiting for a child") {
                break status;
            }
            assert!(!end.is_over(), "it does not end:\n{}", self.rows().join("\n"));
        };
        // Several frames may lie in the terminal, in front of what it wrote last; a look reads a part of one.
        while self.is_drawn_on() && !end.is_over() {
            self.look();
        }
        assert!(status.success(), "it ended with {status}:\n{}", self.rows().join("\n"));
        assert!(!self.is_raw(), "the terminal is left in raw mode");
        assert!(!self.is_drawn_on(), "the screen is left as it was drawn on");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(case: &Case, rows: u16, columns: u16) -> Terminal {
    let mut terminal =
        Terminal::start(case, rows, columns, &["engine", "top", "--interval", "0.2"]);
    // How fast it is is the machine's.
    terminal.shows("the rate of a link", |rows| {
        let figures = rows.iter().find_map(|row| row.strip_prefix("src.output -> tee.input"));
        let rate = figures.and_then(|figures| figures.split_whitespace().next());
        rate.is_some_and(|rate| rate != "0")
    });
    assert!(terminal.is_raw() && terminal.screen.screen().alternate_screen());
    terminal
}

#[test]
fn top_draws_obeys_keys_and_fits_the_terminal() {
    case("top", |case| {
        let engine = engine(case, &file(case, NETWORK), &["--busywait"]);
        let mut top = start(case, 24, 80);
        // What is read at once may be a part of a frame, above the rest of the one before.
        top.shows("a screen that fits", |rows| {
            let Some(head) = rows.iter().position(|row| row.starts_with("link ")) else {
                return false;
            };
            let Some([links @ .., app]) = rows.get(head + 1..head + 5) else { return false };
            let fits = |row: &String| {
                row.contains(" -> ")
                    && row.len() == rows[head].len()
                    && row.ends_with(|last: char| last.is_ascii_digit())
            };
            rows[0].starts_with("shortwire engine top  1 engine process  every 0.2 s")
                && rows[23].starts_with("q quit  space pause  t tree")
                && rows[head].ends_with("packets")
                && links.iter().all(fits)
                && app.starts_with("app ")
                && app.trim_end().ends_with("ns/packet")
                && rows.iter().any(|row| row.starts_with("far") && row.contains("Sink"))
        });

        top.press("p");
        let mut before = top.has("PAUSED");
        // The rest of the frame that says so may be on its way.
        let end = Deadline::within(secs(60));
        loop {
            let look = Instant::now() + millis(600);
            while Instant::now() < look {
                top.look();
            }
            let after = top.rows();
            if after == before {
                break;
            }
            assert!(!end.is_over(), "figures change while it is paused: {before:?} {after:?}");
            before = after;
        }
        top.press(" ");
        top.shows("new figures", |rows| !rows[0].contains("PAUSED") && rows[1..] != before[1..]);
        top.press("t");
        top.has("├ tee.a -> sink.input");
        top.press("+");
        top.has("every 0.4 s");
        top.press("-");
        top.has("every 0.2 s");
        top.press("t");
        top.has("cycles/packet");

        top.resize(50, 200);
        top.shows("the larger screen", |rows| rows.len() == 50 && rows[49].starts_with("q quit"));
        // Far too small: nothing to see, but no harm.
        top.resize(3, 20);
        top.shows("the smaller screen", |rows| rows.len() == 3 && rows[2].starts_with("q quit"));
        top.resize(24, 80);
        top.has("cycles/packet");
        top.press("q");
        top.ends();
        ends_well(engine);
        Ok(())
    });
}

#[test]
fn whatever_ends_top_gives_the_terminal_back() {
    case("top-end", |case| {
        let engine = engine(case, &file(case, NETWORK), &["--busywait"]);
        for key in ["\u{3}", "q", "\u{1b}"] {
            let top = start(case, 24, 80);
            top.press(key);
            top.ends();
        }
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let top = start(case, 50, 200);
            let pid = Pid::from_raw(top.child.id() as i32).expect("a process id");
            kill_process(pid, signal).expect("a signal");
            top.ends();
        }
        // An engine that ends while it is watched is no reason to end.
        let mut top = start(case, 24, 80);
        ends_well(engine);
        top.has("no packet engine runs here");
        top.press("q");
        top.ends();
        Ok(())
    });
}
