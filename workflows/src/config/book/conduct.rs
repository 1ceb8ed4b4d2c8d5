//! What operators say of a limit beside how much it allows: paused, shadow, reserve, and what holds when the coordinator is
//! lost.

use super::{LimitJson, Plan, Problems, text};
use crate::wire::conduct::reserve_of;
use tollgate_core::limit::{CellConfig, Conduct};

impl Plan {
    /// Pauses or resumes all meters and tiers of a limit.
    pub(super) fn pause(&mut self, name: &str, paused: bool) {
        for (key, cell) in self.cells.iter_mut().filter(|(key, _)| key.limit == name) {
            if cell.conduct.paused != paused {
                let what = if paused { "paused: all work is refused until it is resumed" } else { "resumed" };
                self.lines.push(format!("{key}: {what}"));
                cell.conduct.paused = paused;
            }
        }
    }

    /// What a new meter or tier begins with: of a limit that is paused, it is paused too.
    pub(super) fn conduct_of_new(&self, name: &str) -> Conduct {
        let paused = self.cells.values().any(|cell| cell.key.limit == name && cell.conduct.paused);
        Conduct { paused, ..Conduct::default() }
    }
}

/// Checks what a change says of it.
pub(super) fn check(named: &str, limit: &LimitJson, problems: &mut Problems) {
    if let Some(Err(error)) = limit.reserve_ppb.map(reserve_of) {
        problems.add(format!("{named}: {error}"));
    }
    if let Some(Err(error)) = limit.when_lost.map(|when_lost| when_lost.check()) {
        problems.add(format!("{named}: when_lost: {error}"));
    }
}

/// What a change makes of it. Wrong values have been refused before.
pub(super) fn changed(limit: &LimitJson, old: Conduct) -> Conduct {
    Conduct {
        paused: old.paused,
        shadow: limit.shadow.unwrap_or(old.shadow),
        reserve: limit.reserve_ppb.and_then(|ppb| reserve_of(ppb).ok()).unwrap_or(old.reserve),
        when_lost: limit.when_lost.and_then(|when_lost| when_lost.check().ok()).unwrap_or(old.when_lost),
    }
}

/// The part of a line that says what is special of a limit; empty when nothing is.
pub(super) fn described(cell: &CellConfig) -> String {
    let (new, usual) = (cell.conduct, Conduct::default());
    let mut line = String::new();
    if new.reserve != usual.reserve {
        line += &format!(", reserve {}", text::percent(new.reserve));
    }
    if new.when_lost != usual.when_lost {
        line += &format!(", when lost {}", text::when_lost(new.when_lost));
    }
    if new.shadow {
        line += ", shadow";
    }
    if new.paused {
        line += ", paused as the rest of the limit is";
    }
    line
}

/// One line for each part that changes.
pub(super) fn lines(cell: &CellConfig, old: Conduct) -> Vec<String> {
    let (key, new) = (&cell.key, cell.conduct);
    let mut lines = Vec::new();
    if new.reserve != old.reserve {
        lines.push(format!(
            "{key}: reserve {} -> {}",
            text::percent(old.reserve),
            text::percent(new.reserve)
        ));
    }
    if new.when_lost != old.when_lost {
        let (from, to) = (text::when_lost(old.when_lost), text::when_lost(new.when_lost));
        lines.push(format!("{key}: when lost {from} -> {to}"));
    }
    if new.shadow != old.shadow {
        let what =
            if new.shadow { "shadow: refuses nothing from now on" } else { "no shadow any more: refuses" };
        lines.push(format!("{key}: {what}"));
    }
    lines
}
