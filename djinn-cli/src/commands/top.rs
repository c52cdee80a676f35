//! `djinn top`: what a server holds and does, in a terminal, as its page at `/` shows it.

mod draw;
mod history;
mod screen;
mod view;

use crate::args::TopArgs;
use crate::interrupt::Interrupt;
use crate::remote;
use anyhow::{Context, Result, ensure};
use history::History;
use ratatui_core::terminal::Terminal;
use screen::Screen;
use std::io::{IsTerminal, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use view::View;

/// What is asked.
const PATH: &str = "/v1/live";
/// For an answer to come.
const WITHIN: Duration = Duration::from_secs(5);

/// What happens.
enum Event {
    Quit,
    NextModel,
    Down,
    Up,
    Told(Result<Box<View>, String>),
}

/// What is on the screen.
#[derive(Default)]
struct Top {
    url: String,
    view: Option<Box<View>>,
    /// Why there is no newer view.
    trouble: Option<String>,
    model: usize,
    /// Sessions above the first one that is shown.
    scrolled: usize,
    history: History,
}

pub(super) fn run(args: &TopArgs, interrupt: &Interrupt) -> Result<()> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "djinn top needs a terminal; for programs there is {}/v1/live",
        args.url
    );
    let server = remote::at("--url", &args.url, &args.api_key, Some(WITHIN))?;
    // A server that is not there is told on the command line, and not on a screen of its own.
    let first: View = server.get(PATH)?;
    let url = server.url().to_owned();
    let (events, happened) = channel();
    let (quits, keys) = (events.clone(), events.clone());
    interrupt.serve(move || drop(quits.send(Event::Quit)));
    let every = Duration::from_secs_f64(args.every);
    std::thread::spawn(move || {
        // The receiver is gone once the screen is closed.
        while {
            std::thread::sleep(every);
            events
                .send(Event::Told(
                    server.get(PATH).map(Box::new).map_err(|error| djinn_host::one_line(&error)),
                ))
                .is_ok()
        } {}
    });
    let screen = Screen::enter()?;
    std::thread::spawn(move || read_keys(&keys));
    let mut top = Top { url, ..Top::default() };
    top.take(Event::Told(Ok(Box::new(first))));
    let shown = show(Terminal::new(screen).context("the terminal")?, &mut top, &happened);
    // What is enqueued no more is not drawn.
    drop(happened);
    shown
}

/// Draws after each event, until one ends it.
fn show(mut terminal: Terminal<Screen>, top: &mut Top, happened: &Receiver<Event>) -> Result<()> {
    loop {
        terminal.draw(|frame| draw::all(top, frame.buffer_mut())).context("the terminal")?;
        match happened.recv() {
            Ok(Event::Quit) | Err(_) => return Ok(()),
            Ok(event) => top.take(event),
        }
    }
}

impl Top {
    fn take(&mut self, event: Event) {
        let models = self.view.as_ref().map_or(0, |view| view.models.len()).max(1);
        let sessions = self.shown().map_or(0, |model| model.sessions.len());
        match event {
            Event::Quit => {}
            Event::NextModel => {
                self.model = (self.model + 1) % models;
                (self.history, self.scrolled) = (History::default(), 0);
            }
            Event::Down => self.scrolled = (self.scrolled + 1).min(sessions.saturating_sub(1)),
            Event::Up => self.scrolled = self.scrolled.saturating_sub(1),
            Event::Told(Err(why)) => self.trouble = Some(why),
            Event::Told(Ok(view)) => {
                (self.view, self.trouble) = (Some(view), None);
                let Top { view: Some(view), model, history, .. } = self else { return };
                *model = (*model).min(view.models.len().saturating_sub(1));
                if let Some(steps) = view.models.get(*model).and_then(|model| model.work()) {
                    history.add(steps);
                }
            }
        }
    }

    fn shown(&self) -> Option<&view::LiveModel> {
        self.view.as_ref()?.models.get(self.model)
    }
}

/// Tells of keys until the terminal is gone.
fn read_keys(events: &Sender<Event>) {
    let mut held = Vec::new();
    for byte in std::io::stdin().lock().bytes() {
        let Ok(byte) = byte else { break };
        held.push(byte);
        let event = match held.as_slice() {
            [0x1b] | [0x1b, b'['] => continue,
            [b'q' | b'Q'] => Event::Quit,
            [b'\t'] => Event::NextModel,
            [b'j'] | [0x1b, b'[', b'B'] => Event::Down,
            [b'k'] | [0x1b, b'[', b'A'] => Event::Up,
            _ => {
                held.clear();
                continue;
            }
        };
        held.clear();
        if events.send(event).is_err() {
            return;
        }
    }
    // Nobody is there any more.
    let _ = events.send(Event::Quit);
}
