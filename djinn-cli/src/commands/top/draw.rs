//! What is drawn, line by line. What does not fit below is left out, the session table first.

#[cfg(test)]
mod tests;

use super::Top;
use super::history::Shares;
use super::view::{LiveModel, LiveSession, Times};
use crate::size::human;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

const RESIDENT: Color = Color::Indexed(67);
const RING: Color = Color::Indexed(179);
const DATA: Color = Color::Indexed(72);
const STACK: Color = Color::Indexed(140);
const OTHER: Color = Color::Indexed(245);
const FREE: Color = Color::Indexed(238);
const STALL: Color = Color::Indexed(167);
/// Of sessions, by their numbers.
const SESSIONS: [u8; 12] = [67, 173, 72, 140, 179, 110, 167, 108, 97, 137, 73, 132];
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Width of what stands before bars and lanes.
const LABEL: u16 = 10;

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Draws from top to bottom.
struct Pen<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    y: u16,
}

impl Pen<'_> {
    fn is_full(&self) -> bool {
        self.y >= self.area.height
    }

    fn line(&mut self, line: &Line<'_>) {
        if !self.is_full() {
            self.buffer.set_line(0, self.y, line, self.area.width);
        }
        self.y = self.y.saturating_add(1);
    }

    fn text(&mut self, x: u16, text: &str, style: Style) {
        if !self.is_full() && x < self.area.width {
            self.buffer.set_stringn(x, self.y, text, (self.area.width - x).into(), style);
        }
    }

    fn space(&mut self) {
        self.y = self.y.saturating_add(1);
    }

    /// Words after the labels, in as many lines as they take.
    fn words(&mut self, words: Vec<Vec<Span<'static>>>) {
        let indent = || vec![Span::raw(" ".repeat(LABEL.into()))];
        let width = |spans: &[Span<'_>]| spans.iter().map(Span::width).sum::<usize>();
        let mut line = indent();
        for word in words {
            if line.len() > 1 && width(&line) + width(&word) > self.area.width.into() {
                self.line(&Line::from(std::mem::replace(&mut line, indent())));
            }
            line.extend(word);
        }
        self.line(&Line::from(line));
    }

    /// A bar of parts, each with its bytes, and what they are.
    fn bar(&mut self, label: &str, parts: &[(&str, u64, Color)]) {
        let there: Vec<_> = parts.iter().filter(|(_, bytes, _)| *bytes > 0).collect();
        let total: u64 = there.iter().map(|(_, bytes, _)| bytes).sum();
        self.text(0, label, bold());
        let width = f64::from(self.area.width.saturating_sub(LABEL));
        let (mut below, mut words) = (0, Vec::new());
        for (name, bytes, colour) in there {
            let place = |bytes: u64| (bytes as f64 / total as f64 * width).round() as u16;
            let (from, to) = (place(below), place(below + bytes));
            below += bytes;
            self.text(LABEL + from, &"█".repeat((to - from).into()), Style::new().fg(*colour));
            words.push(vec![
                Span::styled("■ ", Style::new().fg(*colour)),
                Span::raw(format!("{name} ")),
                Span::styled(format!("{}  ", human(*bytes)), faint()),
            ]);
        }
        self.space();
        self.words(words);
    }

    /// A lane of the latest looks, of two kinds of share each: the second stands on the first. The last `pending` ones are of
    /// a step that is under way.
    fn lane(
        &mut self,
        label: &str,
        columns: &[Shares],
        pending: usize,
        of: fn(&Shares) -> [(f64, Color); 2],
    ) {
        self.text(0, label, bold());
        let width = usize::from(self.area.width.saturating_sub(LABEL));
        let shown = &columns[columns.len().saturating_sub(width)..];
        let first = LABEL + (width - shown.len()) as u16;
        for (x, shares) in (first..).zip(shown) {
            let [(low, below), (high, above)] = of(shares);
            let eighths = |share: f64| (share.clamp(0.0, 1.0) * 8.0).round() as usize;
            let (low, both) = (eighths(low), eighths(low + high));
            // A cell has one form: the lower part is drawn on the colour of the upper one where that fills it.
            let style = match (low, both) {
                (0, _) => Style::new().fg(above),
                (_, 8) if low < 8 => Style::new().fg(below).bg(above),
                _ => Style::new().fg(below),
            };
            let symbol = EIGHTHS[if low == 0 || both < 8 { both } else { low }];
            self.text(x, symbol, style);
        }
        let pending = pending.min(shown.len());
        let text = "░".repeat(pending);
        self.text(first + (shown.len() - pending) as u16, &text, Style::new().fg(RESIDENT));
        self.space();
    }
}

pub(super) fn all(top: &Top, buffer: &mut Buffer) {
    let area = *buffer.area();
    let mut pen = Pen { buffer, area, y: 0 };
    let Some(view) = &top.view else { return };
    let mut title = vec![
        Span::styled("Djinn ", bold()),
        Span::styled(format!("{} at {}  ", view.version, top.url), faint()),
        Span::raw(format!("{} of {} requests  ", view.server.served, view.server.most_requests)),
    ];
    for (at, model) in view.models.iter().enumerate() {
        let style = if at == top.model { Style::new().add_modifier(Modifier::REVERSED) } else { faint() };
        title.push(Span::styled(format!(" {} ", model.id), style));
    }
    pen.line(&Line::from(title));
    match (&top.trouble, top.shown()) {
        (Some(why), _) => pen.line(&Line::from(Span::styled(why.clone(), Style::new().fg(STALL)))),
        (None, Some(model)) if !model.up || !model.status.is_loaded() => {
            pen.line(&Line::from(Span::styled(model.status.text(), Style::new().fg(STALL))));
        }
        _ => pen.space(),
    }
    if let Some(model) = top.shown() {
        of_model(&mut pen, top, model);
    }
    pen.y = area.height.saturating_sub(1);
    pen.text(0, &" ".repeat(area.width.into()), Style::new());
    let keys = if view.models.len() > 1 {
        "q ends   Tab next model   ↑ ↓ sessions"
    } else {
        "q ends   ↑ ↓ sessions"
    };
    pen.text(0, keys, faint());
}

fn of_model(pen: &mut Pen<'_>, top: &Top, model: &LiveModel) {
    memory(pen, model);
    let columns: Vec<Shares> = top.history.columns.iter().copied().collect();
    pen.lane("copy", &columns, 0, |one| [(one.copy, RING), (one.swap.min(1.0 - one.copy), DATA)]);
    pen.lane("compute", &columns, top.history.pending_looks(), |one| {
        [(one.compute, RESIDENT), (one.stall, STALL)]
    });
    let words = [
        ("■ weights ", RING),
        ("■ KV pages ", DATA),
        ("■ compute ", RESIDENT),
        ("■ waits for a copy", STALL),
    ];
    let legend = words.map(|(word, colour)| {
        let (mark, rest) = word.split_at("■".len());
        vec![Span::styled(mark, Style::new().fg(colour)), Span::styled(rest, faint())]
    });
    pen.words(legend.into());
    pen.space();
    if let Some(queue) = &model.queue {
        let text = format!(
            "running {}   waiting for pages {}   parked {}",
            queue.running, queue.waiting, queue.parked
        );
        pen.line(&Line::from(text));
    }
    let rates = top.history.rates;
    pen.line(&Line::from(format!(
        "generated {:.1} tokens/s   computed {:.1} tokens/s   steps {:.1}/s   link {}/s",
        rates.generated,
        rates.computed,
        rates.steps,
        human(rates.link_bytes as u64)
    )));
    let latency = &model.latency;
    for (name, times) in [
        ("first token", &latency.first_token),
        ("between tokens", &latency.between_tokens),
        ("whole answer", &latency.whole),
    ] {
        pen.line(&percentiles(name, times));
    }
    pen.space();
    sessions(pen, top, model);
}

fn memory(pen: &mut Pen<'_>, model: &LiveModel) {
    let (Some(segments), Some(host), Some(pages), Some(weights)) =
        (&model.segments, &model.host, &model.pages, &model.weights)
    else {
        return;
    };
    let held = pages.device.saturating_sub(pages.device_free) * pages.bytes;
    let all = pages.device * pages.bytes;
    let other = segments.other + segments.data.saturating_sub(all);
    pen.bar(
        "device",
        &[
            ("weights", segments.resident, RESIDENT),
            ("ring", segments.ring, RING),
            ("KV held", held, DATA),
            ("KV free", all.saturating_sub(held), FREE),
            ("activations", segments.stack, STACK),
            ("other", other, OTHER),
        ],
    );
    let away = pages.host.saturating_sub(pages.host_free) * pages.bytes;
    pen.bar(
        "host",
        &[
            ("weights", host.weights, RING),
            ("KV held", away, DATA),
            ("KV free", host.pages.saturating_sub(away), FREE),
        ],
    );
    let text = match weights.ring_chunks {
        0 => format!("{} on the device; nothing streams", human(segments.total)),
        chunks => format!(
            "{} on the device; up to {} stream in a pass; ring: {} of {chunks} chunks ahead",
            human(segments.total),
            human(weights.streamed_bytes),
            weights.ring_ahead
        ),
    };
    pen.text(LABEL, &text, faint());
    pen.space();
    pen.space();
}

fn percentiles(name: &str, times: &Times) -> Line<'static> {
    let text = match (times.p50_ms, times.p90_ms, times.p99_ms) {
        (Some(half), Some(most), Some(nearly)) => {
            format!(
                "p50 {:>8}   p90 {:>8}   p99 {:>8}   of {}",
                time(half),
                time(most),
                time(nearly),
                times.count
            )
        }
        _ => "none yet".to_owned(),
    };
    Line::from(vec![Span::styled(format!("{name:<16}"), faint()), Span::raw(text)])
}

fn time(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1e3 => format!("{ms:.0} ms"),
        ms if ms < 6e4 => format!("{:.1} s", ms / 1e3),
        ms => format!("{:.0} min", ms / 6e4),
    }
}

fn sessions(pen: &mut Pen<'_>, top: &Top, model: &LiveModel) {
    let head = format!(
        "{:<23}{:<17}{:>8}{:>7}  {:<7}{:>9}{:>7}",
        "session", "state", "tokens", "pages", "where", "size", "used"
    );
    pen.line(&Line::from(Span::styled(head, faint())));
    // The last row is the keys'.
    let room = usize::from(pen.area.height.saturating_sub(pen.y + 1));
    let from = top.scrolled.min(model.sessions.len().saturating_sub(1));
    let listed = &model.sessions[from..];
    let most =
        if listed.len() > room || model.sessions_not_listed > 0 { room.saturating_sub(1) } else { room };
    for session in listed.iter().take(most) {
        pen.line(&row(session));
    }
    let more = listed.len().saturating_sub(most) as u64 + model.sessions_not_listed;
    if more > 0 {
        pen.line(&Line::from(Span::styled(format!("and {more} more"), faint())));
    }
}

fn row(session: &LiveSession) -> Line<'static> {
    let number = session.number.unwrap_or_default();
    let name = session.id.clone().unwrap_or_else(|| format!("request {number}"));
    let state = match (&session.paused_at, session.state.as_str(), session.phase.as_deref()) {
        (Some(at), ..) => format!("at {}", at.hook),
        (None, "running", Some(phase)) => phase.to_owned(),
        (None, "waiting", Some("io_wait")) => {
            format!("parked, {}", session.tool.as_deref().unwrap_or("tool"))
        }
        (None, "waiting", _) => "parked".to_owned(),
        (None, state, _) => state.to_owned(),
    };
    let place = match session.residency.as_str() {
        "both" => "moving",
        place => place,
    };
    let used = match (session.state.as_str(), session.idle_ms) {
        ("running", _) => "now".to_owned(),
        (_, Some(ms)) => time(ms as f64),
        (_, None) => String::new(),
    };
    let colour =
        session.number.map_or(FREE, |number| Color::Indexed(SESSIONS[number as usize % SESSIONS.len()]));
    let pages = session.device_pages + session.host_pages;
    let rest = format!(
        "{:<21}{:<17}{:>8}{:>7}  {:<7}{:>9}{:>7}",
        cut(&name, 20),
        cut(&state, 16),
        session.tokens,
        pages,
        place,
        human(session.kv_bytes),
        used
    );
    Line::from(vec![Span::styled("■ ", Style::new().fg(colour)), Span::raw(rest)])
}

fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}
