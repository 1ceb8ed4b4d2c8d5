//! `tollgate top`: limits as they move, on a terminal.
//!
//! [`Board`] is what is known and chosen, without a terminal or a clock; [`draw`] paints it; the loop at the end asks, listens to
//! keys, and paints only when there is something new.

use super::status::{counted, rate_cell};
use crate::args::{Global, Top};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, clock, left, relative};
use crate::quantity::span_text;
use crate::signals::StopSignals;
use crate::table::printable;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};
use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal as _;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_core::limit::CellKey;
use tollgate_workflows::details::{key as key_text, percent, rate_text, tenths};
use tollgate_workflows::wire::config::PolicyJson;
use tollgate_workflows::wire::status::{FilterJson, HolderJson, LimitDetailJson, LimitRowJson, StatusJson};

/// Samples that are kept of a limit: as many as a wide terminal has columns.
const SAMPLES_MAX: usize = 240;
/// Two answers closer than this, by the coordinator's own time, make no sample: one heartbeat more or less would show.
const SAMPLE_US_MIN: u64 = 900_000;
/// Columns of the sparkline in the table.
const SPARK: usize = 16;
/// Terminals with fewer columns get narrower ones.
const WIDE: u16 = 100;
/// Keys that wait to be handled: more than a fast typist's.
const KEYS_MAX: usize = 64;
/// The longest filter.
const FILTER_CHARS_MAX: usize = 60;

const KEYS: &str = "↑↓ choose  enter details  s sort  / filter  q quit";

/// How rows are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    /// The fullest first.
    #[default]
    Used,
    /// The most waiting first.
    Waiting,
    /// By name.
    Name,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Used => Sort::Waiting,
            Sort::Waiting => Sort::Name,
            Sort::Name => Sort::Used,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Used => "use",
            Sort::Waiting => "waiting",
            Sort::Name => "name",
        }
    }
}

/// What is admitted of a limit, sample by sample.
#[derive(Clone, Debug, Default)]
struct Track {
    /// The coordinator's time and count at the last sample.
    last: Option<(u64, u64)>,
    /// Admitted a second and the limit then, in millionths.
    samples: VecDeque<(u64, u64)>,
}

impl Track {
    fn add(&mut self, now_us: u64, row: &LimitRowJson) {
        let Some((at_us, used)) = self.last else {
            self.last = Some((now_us, row.used));
            return;
        };
        let Some(passed) = now_us.checked_sub(at_us).filter(|passed| *passed >= SAMPLE_US_MIN) else {
            return;
        };
        // A coordinator that began anew counts from zero.
        let more = u128::from(row.used.saturating_sub(used)) * 1_000_000_000_000 / u128::from(passed);
        self.samples.push_back((u64::try_from(more).unwrap_or(u64::MAX), row.rate_micro));
        while self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.last = Some((now_us, row.used));
    }

    fn admitted_micro(&self) -> Option<u64> {
        self.samples.back().map(|(admitted, _)| *admitted)
    }

    /// The last samples as blocks, of which a full one is the limit, or what is highest where that is more.
    fn spark(&self, columns: usize) -> String {
        let shown = self.samples.iter().skip(self.samples.len().saturating_sub(columns));
        let top = shown.clone().map(|(admitted, limit)| *admitted.max(limit)).max().unwrap_or(0).max(1);
        let blocks: String = shown.map(|(admitted, _)| block(*admitted, top)).collect();
        format!("{blocks:>columns$}")
    }
}

/// So much of `top`, as an eighth of a line; nothing is a blank only where it is nothing.
fn block(part: u64, top: u64) -> char {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let eighths = (u128::from(part) * 8).div_ceil(u128::from(top.max(1)));
    BLOCKS.get(usize::try_from(eighths).unwrap_or(8)).copied().unwrap_or('█')
}

/// What is known, and what whoever looks has chosen.
#[derive(Debug, Default)]
struct Board {
    status: Option<StatusJson>,
    /// By limit, meter and tier.
    tracks: BTreeMap<String, Track>,
    detail: Option<LimitDetailJson>,
    /// The limit whose details are looked at.
    opened: Option<String>,
    sort: Sort,
    filter: String,
    /// Whether the filter is being typed.
    typing: bool,
    /// The key of the row that is chosen.
    chosen: Option<String>,
    trouble: Option<String>,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Paint.
    Draw,
    /// Ask, and paint.
    Ask,
    /// Leave.
    Quit,
}

impl Board {
    fn take(&mut self, status: StatusJson, detail: Option<LimitDetailJson>) {
        for row in &status.limits {
            self.tracks.entry(key_text(row)).or_default().add(status.now_us, row);
        }
        // As many as the group has limits.
        self.tracks.retain(|key, _| status.limits.iter().any(|row| key_text(row) == *key));
        self.status = Some(status);
        self.detail = detail;
        self.trouble = None;
    }

    /// The rows that are shown, in order.
    fn rows(&self) -> Vec<&LimitRowJson> {
        let Some(status) = &self.status else { return Vec::new() };
        let wanted = self.filter.to_lowercase();
        let mut rows: Vec<&LimitRowJson> =
            status.limits.iter().filter(|row| key_text(row).to_lowercase().contains(&wanted)).collect();
        rows.sort_by_key(|row| {
            let first = match self.sort {
                Sort::Used => self.used_ppm(row),
                Sort::Waiting => row.waiting,
                Sort::Name => 0,
            };
            (std::cmp::Reverse(first), key_text(row))
        });
        rows
    }

    /// What is used of the limit, in millionths of it.
    fn used_ppm(&self, row: &LimitRowJson) -> u64 {
        if row.kind == "permits" {
            return ppm(row.out, row.burst);
        }
        let admitted = self.tracks.get(&key_text(row)).and_then(Track::admitted_micro);
        admitted.or(row.used_micro).map_or(0, |admitted| ppm(admitted, row.rate_micro))
    }

    fn index(&self, rows: &[&LimitRowJson]) -> usize {
        let found = rows.iter().position(|row| Some(key_text(row)) == self.chosen);
        found.unwrap_or(0)
    }

    fn choose(&mut self, step: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let index = self.index(&rows).saturating_add_signed(step).min(last);
        self.chosen = rows.get(index).map(|row| key_text(row));
    }

    fn event(&mut self, event: Option<Event>) -> Then {
        match event {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => self.key(key),
            // Another size, for example. None comes no more when the terminal is gone: SIGHUP says so, too.
            Some(_) => Then::Draw,
            None => Then::Quit,
        }
    }

    fn key(&mut self, key: KeyEvent) -> Then {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Then::Quit } else { Then::Draw };
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                    self.filter.push(letter);
                }
                _ => {}
            }
            return Then::Draw;
        }
        match key.code {
            KeyCode::Char('q' | 'Q') => return Then::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::PageUp => self.choose(-10),
            KeyCode::PageDown => self.choose(10),
            KeyCode::Home | KeyCode::Char('g') => self.choose(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.choose(isize::MAX),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Enter if self.opened.is_none() => {
                let rows = self.rows();
                self.opened = rows.get(self.index(&rows)).map(|row| row.limit.clone());
                self.detail = None;
                return Then::Ask;
            }
            KeyCode::Esc | KeyCode::Enter | KeyCode::Left if self.opened.is_some() => {
                (self.opened, self.detail) = (None, None);
            }
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        Then::Draw
    }
}

fn ppm(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(part) * 1_000_000 / u128::from(whole)).unwrap_or(u64::MAX)
}

/// Paints the board. Meant for 80 columns and 24 lines, and takes what there is.
fn draw(frame: &mut Frame<'_>, board: &Board, now_us: u64) {
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(headline(board, now_us)), title);
    match (&board.opened, &board.detail) {
        (Some(_), Some(detail)) => draw_detail(frame, body, board, detail, now_us),
        (Some(limit), None) => {
            frame.render_widget(Paragraph::new(format!("asking for {}", printable(limit))), body)
        }
        (None, _) => draw_table(frame, body, board, now_us),
    }
    let dim = Style::new().add_modifier(Modifier::DIM);
    let foot_line = match (&board.trouble, board.typing) {
        (Some(trouble), _) => Line::styled(format!("no newer figures: {}", printable(trouble)), alarm()),
        (None, true) => Line::raw(format!("filter: {}▏", printable(&board.filter))),
        (None, false) if board.opened.is_some() => Line::styled("esc back  q quit", dim),
        (None, false) if !board.filter.is_empty() => {
            Line::styled(format!("filter: {} (esc clears)  {KEYS}", printable(&board.filter)), dim)
        }
        (None, false) => Line::styled(format!("{KEYS}  ·  by {}", board.sort.name()), dim),
    };
    frame.render_widget(Paragraph::new(foot_line), foot);
}

fn alarm() -> Style {
    Style::new().fg(Color::Red)
}

fn warn_if(wanted: bool) -> Style {
    if wanted { Style::new().fg(Color::Yellow) } else { Style::new() }
}

fn headline(board: &Board, now_us: u64) -> Line<'static> {
    let Some(status) = &board.status else { return Line::raw("tollgate top · asking the coordinator") };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![
        Span::styled(format!("group {}", printable(&status.group)), bold),
        Span::raw(format!(
            " · {} · heartbeat {} · {}",
            counted(status.workers, "worker"),
            moment::length(status.heartbeat_ms.saturating_mul(1_000)),
            relative(status.now_us, now_us)
        )),
    ];
    if let Some(until) = status.recovering_until_us.filter(|until| *until > now_us) {
        spans.push(Span::styled(format!(" · recovering for {}", left(until, now_us)), alarm()));
    }
    let starving = status.limits.iter().filter(|row| row.starving.is_some()).count() as u64;
    if starving > 0 {
        spans.push(Span::styled(format!(" · {} starving somebody", counted(starving, "limit")), alarm()));
    }
    if status.unreadable.count > 0 {
        spans.push(Span::styled(format!(" · {} unreadable", status.unreadable.count), warn_if(true)));
    }
    Line::from(spans)
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, board: &Board, now_us: u64) {
    let rows = board.rows();
    if rows.is_empty() {
        let text = match &board.status {
            Some(status) if !status.limits.is_empty() => "no limit has that in its name",
            Some(_) => "no limits yet: `tollgate limit set NAME --rate 50/s` makes one",
            None => "",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    // A narrow terminal shows less of the past, and where a ramp leads without when.
    let (spark, rate) = if area.width < WIDE { (10, 15) } else { (SPARK, 24) };
    let right = |text: String| Cell::from(Line::raw(text).right_aligned());
    let header = Row::new([
        Cell::from("LIMIT"),
        right("RATE NOW".to_owned()),
        right("USED".to_owned()),
        right("OF IT".to_owned()),
        Cell::from(format!("{:>spark$}", "LATELY")),
        right("WAIT".to_owned()),
        right("HOLD".to_owned()),
    ]);
    let shown = rows.iter().map(|row| {
        let track = board.tracks.get(&key_text(row));
        let is_permits = row.kind == "permits";
        let admitted = track.and_then(Track::admitted_micro).or(row.used_micro);
        let used = match admitted {
            _ if is_permits => row.out.to_string(),
            Some(admitted) => rate_text(admitted, row.rate_micro),
            None => "…".to_owned(),
        };
        let is_unwell = row.starving.is_some()
            || row.conduct.paused
            || row.recovering_until_us.is_some_and(|until| until > now_us);
        let rate = allowed(row, now_us, area.width < WIDE);
        let name = printable(&short_key(row)) + conduct_text(row);
        Row::new([
            Cell::from(name).style(if is_unwell { alarm() } else { Style::new() }),
            right(rate).style(warn_if(row.ramp_ends_us.is_some_and(|end| end > now_us))),
            right(used),
            right(format!("{}%", board.used_ppm(row) / 10_000)),
            Cell::from(track.map(|track| track.spark(spark)).unwrap_or_default())
                .style(Style::new().fg(Color::Cyan)),
            right(row.waiting.to_string()).style(warn_if(row.waiting > 0)),
            right(row.holders.to_string()),
        ])
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(rate),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(u16::try_from(spark).unwrap_or(10)),
        Constraint::Length(6),
        Constraint::Length(5),
    ];
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let table = Table::new(shown, widths).header(header.style(bold)).row_highlight_style(reversed);
    let mut state = TableState::new().with_selected(board.index(&rows));
    frame.render_stateful_widget(table, area, &mut state);
}

/// What an operator has done to a limit beside its figures.
fn conduct_text(row: &LimitRowJson) -> &'static str {
    match (row.conduct.paused, row.conduct.shadow) {
        (true, _) => " (paused)",
        (false, true) => " (shadow)",
        (false, false) => "",
    }
}

fn draw_detail(frame: &mut Frame<'_>, area: Rect, board: &Board, detail: &LimitDetailJson, now_us: u64) {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let width = usize::from(area.width);
    if detail.cells.is_empty() {
        lines.push(Line::raw("there is no such limit any more"));
    }
    for cell in &detail.cells {
        let row = &cell.row;
        lines.push(Line::styled(printable(&key_text(row)), bold));
        let free =
            if row.debt_milli > 0 { format!("-{}", tenths(row.debt_milli)) } else { tenths(row.free_milli) };
        lines.push(Line::raw(format!(
            "{} · burst {} · free {free} · waiting {} · used {}",
            match row.policy {
                PolicyJson::TokenBucket => format!("rate {}", rate_cell(row, now_us)),
                _ => allowed(row, now_us, false),
            },
            row.burst,
            row.waiting,
            row.used,
        )));
        let kind = format!("{}: {}", row.kind, printable(&row.kind_reason));
        lines.push(Line::styled(kind, Style::new().add_modifier(Modifier::DIM)));
        if let Some(starving) = &row.starving {
            lines.push(Line::styled(format!("starving: {}", printable(&starving.text)), alarm()));
        }
        if let Some(track) = board.tracks.get(&key_text(row)) {
            lines.push(Line::styled(track.spark(width.min(SAMPLES_MAX)), Style::new().fg(Color::Cyan)));
        }
        if cell.holders.is_empty() {
            lines.push(Line::raw("no worker holds or wants any of it"));
            lines.push(Line::raw(""));
            continue;
        }
        lines.push(Line::styled(
            format!("{:<24}{:>8}{:>8}{:>12}{:>9}  EXPIRES", "WORKER", "SHARE", "CAP", "DEMAND", "WAITING"),
            Style::new().add_modifier(Modifier::DIM),
        ));
        lines.extend(cell.holders.iter().map(|holder| holder_line(holder, row, now_us)));
        lines.push(Line::raw(""));
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

/// What a limit allows now: a rate, so many at once, or so many in a window.
fn allowed(row: &LimitRowJson, now_us: u64, is_narrow: bool) -> String {
    match &row.policy {
        PolicyJson::InFlight { .. } => format!("{} at once", row.burst),
        PolicyJson::SlidingWindow { window_ms } => format!("{} in {}", row.burst, span_text(*window_ms)),
        PolicyJson::FixedWindow { calendar: Some(calendar), .. } => {
            format!("{} a {}", row.burst, calendar.window.as_str())
        }
        PolicyJson::FixedWindow { .. } => format!("{} a window", row.burst),
        PolicyJson::TokenBucket if is_narrow && row.ramp_ends_us.is_some_and(|end| end > now_us) => {
            let rate = |micro| rate_text(micro, row.target_micro);
            format!("{}→{}", rate(row.rate_micro), rate(row.target_micro))
        }
        PolicyJson::TokenBucket => rate_cell(row, now_us),
    }
}

/// A row's limit, without the tier where there is but one.
fn short_key(row: &LimitRowJson) -> String {
    if row.tier == CellKey::TIER && row.meter != CellKey::METER {
        return format!("{} [{}]", row.limit, row.meter);
    }
    key_text(row)
}

fn holder_line(holder: &HolderJson, row: &LimitRowJson, now_us: u64) -> Line<'static> {
    let name = if holder.worker.is_empty() { "-" } else { &holder.worker };
    let name: String = printable(name).chars().take(23).collect();
    let expires = holder.expires_us.map_or_else(|| "-".to_owned(), |at| relative(at, now_us));
    let seen = now_us.saturating_sub(holder.seen_us) > 10_000_000;
    let quiet = if seen { format!(", last heard {}", clock(holder.seen_us, now_us)) } else { String::new() };
    let text = format!(
        "{name:<24}{:>8}{:>8}{:>12}{:>9}  {expires}{quiet}",
        percent(holder.share_ppb),
        tenths(holder.cap_milli),
        rate_text(holder.demand_micro, row.target_micro),
        holder.waiting
    );
    Line::styled(text, warn_if(holder.waiting > 0 || seen))
}

/// Shows the board until somebody leaves.
///
/// # Errors
/// [`Failure::Usage`] without a terminal; as [`Session::query`] when the first answer fails. Later ones are shown, and asked for
/// again.
pub async fn run(global: &Global, options: &Top) -> Result<(), Failure> {
    if global.json || !std::io::stdout().is_terminal() {
        let instead = "`tollgate status --watch --json` is for scripts";
        return Err(Failure::Usage(format!("top needs a terminal and prints no JSON: {instead}")));
    }
    let mut session = Session::open(global).await?;
    let mut stop = StopSignals::listen()?;
    let mut board = Board::default();
    let (status, _) = ask(&session, None).await?;
    board.take(status, None);
    let unable = |error: std::io::Error| Failure::Failed(format!("can't set up the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(unable)?;
    let shown = show(&mut session, &mut stop, &mut board, &mut terminal, options.every).await;
    ratatui::restore();
    shown
}

async fn show(
    session: &mut Session,
    stop: &mut StopSignals,
    board: &mut Board,
    terminal: &mut ratatui::DefaultTerminal,
    every: Duration,
) -> Result<(), Failure> {
    let mut keys = listen();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut paint = |board: &Board| {
        let painted = terminal.draw(|frame| draw(frame, board, moment::now_us())).map(drop);
        painted.map_err(|error| Failure::Failed(format!("can't write to the terminal: {error}")))
    };
    loop {
        paint(board)?;
        tokio::select! {
            _ = stop.recv() => return Ok(()),
            _ = ticks.tick() => {}
            event = keys.recv() => match board.event(event) {
                Then::Quit => return Ok(()),
                Then::Draw => continue,
                Then::Ask => {}
            },
        }
        session.restart_time();
        let opened = board.opened.clone();
        let mut asking = std::pin::pin!(ask(session, opened.as_deref()));
        // An answer that takes long keeps nobody from choosing, or from leaving.
        let asked = loop {
            paint(board)?;
            tokio::select! {
                _ = stop.recv() => return Ok(()),
                asked = &mut asking => break asked,
                event = keys.recv() => if board.event(event) == Then::Quit {
                    return Ok(());
                },
            }
        };
        match asked {
            Ok((status, detail)) => board.take(status, detail.filter(|_| board.opened == opened)),
            Err(failure) => board.trouble = Some(failure.to_string()),
        }
        if board.opened != opened {
            ticks.reset_immediately();
        }
    }
}

async fn ask(
    session: &Session,
    opened: Option<&str>,
) -> Result<(StatusJson, Option<LimitDetailJson>), Failure> {
    let status = session.query(Workflow::Coordinator, "status", &FilterJson::default()).await?.read()?;
    let Some(limit) = opened else { return Ok((status, None)) };
    let filter = FilterJson { limit: limit.to_owned(), ..FilterJson::default() };
    let detail = session.query(Workflow::Coordinator, "limit", &filter).await?.read()?;
    Ok((status, Some(detail)))
}

/// Keys and changes of size, read by a thread of their own: a terminal can't be read without blocking.
fn listen() -> mpsc::Receiver<Event> {
    let (send, events) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if send.blocking_send(event).is_err() {
                return;
            }
        }
    });
    events
}

#[cfg(test)]
#[path = "top_tests.rs"]
mod tests;
