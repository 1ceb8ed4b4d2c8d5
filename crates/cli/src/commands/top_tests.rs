use super::super::status::tests::{NOW, row, status};
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tollgate_workflows::wire::status::LimitCellJson;

const SECOND: u64 = 1_000_000;

fn press(board: &mut Board, code: KeyCode) -> Then {
    board.event(Some(Event::Key(KeyEvent::new(code, KeyModifiers::NONE))))
}

/// The lines of a screen of this size, without the blanks at their ends.
fn screen(board: &Board, columns: u16, lines: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw(frame, board, NOW)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line =
        |y: u16| (0..columns).map(|x| buffer.cell((x, y)).unwrap().symbol().to_owned()).collect::<String>();
    (0..lines).map(|y| line(y).trim_end().to_owned()).collect()
}

/// A board that has seen `limits` for some seconds, in each of which so many more were used.
fn board(limits: Vec<(LimitRowJson, u64)>, seconds: u64) -> Board {
    let mut board = Board::default();
    for second in 0..=seconds {
        let used = |(row, more): &(LimitRowJson, u64)| LimitRowJson { used: more * second, ..row.clone() };
        let mut status = status(limits.iter().map(used).collect());
        status.now_us = NOW + second * SECOND - seconds * SECOND;
        board.take(status, None);
    }
    board
}

#[test]
fn a_screen_of_80_by_24_shows_what_is_used_of_each_limit_and_its_course() {
    let waiting = LimitRowJson { waiting: 7, ..row("search", 10) };
    let board = board(vec![(row("openai", 50), 49), (waiting, 5)], 4);
    let lines = screen(&board, 80, 24);
    assert_eq!(lines[0], "group default · 5 workers · heartbeat 1.0s · now");
    assert!(lines[1].starts_with("LIMIT") && lines[1].ends_with("WAIT  HOLD"), "{}", lines[1]);
    assert!(
        lines[2].starts_with("openai ") && lines[2].contains("98%") && lines[2].contains("████"),
        "{}",
        lines[2]
    );
    assert!(
        lines[3].starts_with("search ") && lines[3].contains("50%") && lines[3].contains("▄▄▄▄"),
        "{}",
        lines[3]
    );
    assert!(lines[3].ends_with("7     5"), "{}", lines[3]);
    assert!(lines[23].starts_with(KEYS) && lines[23].ends_with("by use"), "{}", lines[23]);
}

#[test]
fn rows_are_sorted_filtered_and_chosen_by_keys() {
    let busy = LimitRowJson { waiting: 9, ..row("b", 10) };
    let mut board = board(vec![(row("c", 10), 9), (busy, 1), (row("a", 10), 5)], 2);
    let names = |board: &Board| board.rows().iter().map(|row| row.limit.clone()).collect::<Vec<_>>();
    assert_eq!(names(&board), ["c", "a", "b"]);
    press(&mut board, KeyCode::Char('s'));
    assert_eq!(names(&board), ["b", "a", "c"]);
    press(&mut board, KeyCode::Char('s'));
    assert_eq!(names(&board), ["a", "b", "c"]);

    press(&mut board, KeyCode::Down);
    assert_eq!(board.chosen.as_deref(), Some("b"));
    press(&mut board, KeyCode::PageDown);
    press(&mut board, KeyCode::Down);
    assert_eq!(board.chosen.as_deref(), Some("c"), "it ends at the last one");
    press(&mut board, KeyCode::Home);
    assert_eq!(board.chosen.as_deref(), Some("a"));

    for key in [KeyCode::Char('/'), KeyCode::Char('B'), KeyCode::Char('q')] {
        assert_eq!(press(&mut board, key), Then::Draw, "a letter of the filter");
    }
    assert!(names(&board).is_empty());
    assert!(screen(&board, 80, 24)[1].contains("no limit has that in its name"));
    press(&mut board, KeyCode::Backspace);
    press(&mut board, KeyCode::Enter);
    assert_eq!(names(&board), ["b"]);
    press(&mut board, KeyCode::Esc);
    assert_eq!(names(&board).len(), 3);
    assert_eq!(press(&mut board, KeyCode::Char('q')), Then::Quit);
}

#[test]
fn details_are_asked_for_when_a_limit_is_opened_and_left_with_escape() {
    let mut board = board(vec![(row("openai", 50), 49)], 3);
    assert_eq!(press(&mut board, KeyCode::Enter), Then::Ask);
    assert_eq!(board.opened.as_deref(), Some("openai"));
    let holder = HolderJson {
        incarnation: "3f9a01c2".repeat(4),
        worker: "host-1/77".to_owned(),
        limit: "openai".to_owned(),
        meter: "requests".to_owned(),
        tier: "default".to_owned(),
        borrowed: false,
        share_ppb: 400_000_000,
        cap_milli: 5_000,
        expires_us: Some(NOW + 9 * SECOND),
        acknowledged: true,
        demand_micro: 20_000_000,
        waiting: 3,
        waiting_since_us: None,
        seen_us: NOW - SECOND,
    };
    let cell = LimitCellJson { row: row("openai", 50), holders: vec![holder] };
    board.detail = Some(LimitDetailJson { now_us: NOW, cells: vec![cell] });
    let lines = screen(&board, 80, 24);
    assert_eq!(lines[1], "openai");
    assert!(lines[2].starts_with("rate 50/s · burst 16 · free 3.2"), "{}", lines[2]);
    let text = lines.join("\n");
    assert!(text.contains("host-1/77") && text.contains("40%") && text.contains("in 9.0s"), "{text}");
    press(&mut board, KeyCode::Esc);
    assert!(board.opened.is_none() && board.detail.is_none());
}

#[test]
fn no_size_of_terminal_and_no_figures_make_it_panic() {
    let odd = LimitRowJson { rate_micro: 0, target_micro: 0, burst: 0, ..row("nul\u{1b}[2J名前", 0) };
    let huge = LimitRowJson { rate_micro: 1, ..row(&"x".repeat(200), u64::MAX / 1_000_000) };
    let mut boards = vec![Board::default(), board(vec![(odd, 0), (huge, u64::MAX / 8)], 3)];
    for board in &mut boards {
        for (columns, lines) in [(1, 1), (2, 2), (20, 5), (80, 24), (300, 100)] {
            let shown = screen(board, columns, lines).join("");
            assert!(!shown.contains('\u{1b}'), "{shown:?}");
            press(board, KeyCode::Enter);
            screen(board, columns, lines);
            press(board, KeyCode::Esc);
        }
    }
}

#[test]
fn a_coordinator_that_counts_anew_makes_no_wild_sample() {
    let mut track = Track::default();
    track.add(10 * SECOND, &LimitRowJson { used: 1_000, ..row("a", 50) });
    track.add(11 * SECOND, &LimitRowJson { used: 5, ..row("a", 50) });
    track.add(12 * SECOND, &LimitRowJson { used: 55, ..row("a", 50) });
    track.add(12 * SECOND, &LimitRowJson { used: 99, ..row("a", 50) });
    let samples: Vec<u64> = track.samples.iter().map(|(admitted, _)| *admitted).collect();
    assert_eq!(samples, [0, 50_000_000]);
    for second in 13..13 + 2 * SAMPLES_MAX as u64 {
        track.add(second * SECOND, &row("a", 50));
    }
    assert_eq!(track.samples.len(), SAMPLES_MAX);
}

#[test]
fn eighty_columns_cut_no_figure() {
    let mut ramping = row("openai", 53);
    (ramping.target_micro, ramping.ramp_ends_us) = (80 * SECOND, Some(NOW + 272 * SECOND));
    let mut slots = row("openai", 20);
    (slots.meter, slots.kind) = ("in_flight".to_owned(), "permits".to_owned());
    (slots.policy, slots.burst) = (PolicyJson::InFlight { drain_ms: 0 }, 20);
    let mut window = row("search", 100);
    (window.policy, window.burst) = (PolicyJson::SlidingWindow { window_ms: 10_000 }, 1_000);
    let board = board(vec![(ramping, 49), (slots, 0), (window, 0)], 3);
    let lines = screen(&board, 80, 24);
    let all = lines.join("\n");
    for text in ["53/s→80/s ", "20 at once ", "1000 in 10s ", "openai [in_flight] "] {
        assert!(all.contains(text), "{text}: {all}");
    }
    assert!(screen(&board, 120, 40).join("\n").contains("53/s → 80/s in 4m32s"));
}
