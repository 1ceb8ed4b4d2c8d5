//! `tollgate status --watch`: drawn anew every second.

use super::{print, status};
use crate::connection::Session;
use crate::failure::Failure;
use crate::signals::StopSignals;
use crate::table::Paint;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::IsTerminal as _;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const PERIOD: Duration = Duration::from_secs(1);
/// Enters the screen that leaves the scrollback alone, hides the cursor, and cuts long lines instead of wrapping them.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Shows the status until somebody presses q or Ctrl-C. Without a terminal it prints block after block.
///
/// # Errors
/// When the first answer fails, or the output can't be written. Later answers that fail are shown, and asked for again.
pub async fn run(session: &mut Session, limit: Option<&str>, json: bool) -> Result<(), Failure> {
    let on_screen = std::io::stdout().is_terminal() && !json;
    let mut stop = StopSignals::listen()?;
    let mut shown = status::fetch(session, limit, json, Paint::of_stdout()).await?;
    let screen = if on_screen { Some(Screen::enter()?) } else { None };
    let mut keys = Keys::listen(screen.is_some());
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut first = true;
    loop {
        if on_screen {
            print(&frame(&shown))?;
        } else {
            if !first && !json {
                status::print_separator()?;
            }
            print(&shown)?;
        }
        first = false;
        // An answer that takes long keeps nobody from leaving.
        let next = async {
            ticks.tick().await;
            session.restart_time();
            // The terminal may have another size by now.
            status::fetch(session, limit, json, Paint::of_stdout()).await
        };
        tokio::select! {
            _ = stop.recv() => return Ok(()),
            () = keys.quit() => return Ok(()),
            answer = next => match answer {
                Ok(text) => shown = text,
                Err(failure) if on_screen => {
                    let paint = Paint::of_stdout();
                    let stale = shown.split(STALE).next().unwrap_or_default();
                    shown = format!("{stale}{STALE}{}", paint.fold(&paint.alarm(&failure.to_string())));
                }
                Err(failure) if json => return Err(failure),
                Err(failure) => shown = format!("{failure}\n"),
            },
        }
    }
}

/// Stands between the last good answer and why there is no newer one.
const STALE: &str = "\nno newer figures:\n";

/// The text as one screen: written over the last one without clearing it first, which would flicker.
fn frame(text: &str) -> String {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    // Some terminals don't know their size and say zero.
    let rows = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 1).unwrap_or(usize::MAX);
    let mut frame = "\x1b[H".to_owned();
    let lines: Vec<&str> = text.lines().collect();
    let fits = if lines.len() < rows { lines.len() } else { rows - 2 };
    for line in lines.iter().take(fits) {
        frame.push_str(line);
        frame.push_str("\x1b[K\n");
    }
    if fits < lines.len() {
        frame.push_str(&format!("… {} more lines\x1b[K\n", lines.len() - fits));
    }
    frame.push_str("\x1b[J");
    frame
}

/// The alternate screen, and a terminal that hands out keys at once. Dropping it restores both.
struct Screen {
    before: Option<Termios>,
}

impl Screen {
    fn enter() -> Result<Screen, Failure> {
        let stdin = std::io::stdin();
        let before = if stdin.is_terminal() { tcgetattr(&stdin).ok() } else { None };
        if let Some(before) = &before {
            let mut raw = before.clone();
            // Ctrl-C stays a signal.
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(&stdin, OptionalActions::Now, &raw)
                .map_err(|error| Failure::Failed(format!("can't set up the terminal: {error}")))?;
        }
        let screen = Screen { before };
        print(ENTER)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing is left to tell it to when the terminal is gone.
        print(LEAVE).ok();
        if let Some(before) = &self.before {
            tcsetattr(std::io::stdin(), OptionalActions::Now, before).ok();
        }
    }
}

/// Keys, read by a thread of their own: a terminal can't be read without blocking.
struct Keys {
    quit: tokio::sync::mpsc::Receiver<()>,
    listening: bool,
}

impl Keys {
    fn listen(on_terminal: bool) -> Keys {
        let (send, quit) = tokio::sync::mpsc::channel(1);
        let listening = on_terminal && std::io::stdin().is_terminal();
        if listening {
            std::thread::spawn(move || {
                let mut key = [0_u8];
                // Ctrl-D comes as 4.
                while matches!(rustix::io::read(std::io::stdin(), &mut key), Ok(1..)) {
                    if matches!(key, [b'q' | b'Q' | 4]) && send.blocking_send(()).is_err() {
                        return;
                    }
                }
            });
        }
        Keys { quit, listening }
    }

    async fn quit(&mut self) {
        if !self.listening || self.quit.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
