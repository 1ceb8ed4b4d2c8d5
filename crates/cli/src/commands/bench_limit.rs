//! `tollgate bench-limit`.

use super::{print, print_line, ramp};
use crate::args::{BenchLimit, Global};
use crate::failure::Failure;
use crate::moment::length;
use crate::quantity::span_text;
use crate::table::Paint;
use serde_json::json;
use std::io::{IsTerminal as _, Write as _};
use tollgate_core::units::Span;
use tollgate_sim::scenario::{Bench, Outcome, percentile};
use tollgate_workflows::wire::config::LimitJson;

/// Plays a limit under a load and says how it did.
///
/// # Errors
/// [`Failure::Usage`] naming what is out of range; [`Failure::Failed`] when the limit was broken, which would be a mistake of ours.
pub fn run(global: &Global, options: &BenchLimit) -> Result<(), Failure> {
    let bench = bench(options)?;
    let shows = !global.json && std::io::stderr().is_terminal();
    let outcome = bench.run(&mut |percent| {
        if shows {
            progress(percent);
        }
    });
    if shows {
        // Over with: the line is taken away.
        write!(std::io::stderr(), "\r\x1b[K").ok();
    }
    let outcome = outcome.map_err(|problems| usage(&problems))?;
    if global.json {
        print_line(&summary(&bench, &outcome).to_string())?;
    } else {
        print(&render(options, &bench, &outcome, Paint::of_stdout()))?;
    }
    match &outcome.violation {
        None => Ok(()),
        Some(violation) => Err(Failure::Failed(format!("the run broke a promise: {violation:?}"))),
    }
}

fn progress(percent: u64) {
    let mut out = std::io::stderr().lock();
    write!(out, "\r{} {percent:>3}%", ramp::bar(percent / 5)).and_then(|()| out.flush()).ok();
}

fn usage(problems: &[tollgate_sim::scenario::OutOfRange]) -> Failure {
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("--{}: {}", problem.field, problem.problem)).collect();
    Failure::Usage(lines.join("\n"))
}

fn bench(options: &BenchLimit) -> Result<Bench, Failure> {
    let readable = |name: &str, error: &dyn std::fmt::Display| Failure::Usage(format!("--{name}: {error}"));
    let demand = options.demand.check().map_err(|error| readable("demand", &error))?;
    let stated = LimitJson { burst: options.burst, ..LimitJson::named("bench") };
    let bench = Bench {
        rate: options.rate.check().map_err(|error| readable("rate", &error))?,
        burst: stated.burst_or_default(options.rate),
        lease: options.lease,
        workers: options.workers,
        demand_milli: demand.micro_per_second() / 1_000,
        skew_ppm: options.skew.map(u64::from),
        length: options.length,
        patience: options.patience,
        seed: options.seed,
    };
    let mut problems = bench.check().err().unwrap_or_default();
    if bench.burst == 0 {
        problems.push(tollgate_sim::scenario::OutOfRange {
            field: "burst",
            problem: "is 0, allowed: at least 1, since nothing is admitted without".to_owned(),
        });
    }
    if problems.is_empty() { Ok(bench) } else { Err(usage(&problems)) }
}

/// What the limit itself would have let through: its burst, and what its rate brings.
fn allowed(bench: &Bench) -> u64 {
    let micro = u128::from(bench.rate.micro_tokens) * u128::from(bench.length.0);
    let minted = micro / (1_000_000 * u128::from(bench.rate.period.0.max(1)));
    u64::try_from(minted).unwrap_or(u64::MAX).saturating_add(bench.burst)
}

fn minute(count: u64, bench: &Bench) -> u64 {
    count.saturating_mul(60_000_000) / bench.length.0.max(1)
}

/// Millionths as a ratio.
fn ratio(ppm: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a ratio that is shown")]
    let ppm = ppm as f64;
    ppm / 1e6
}

fn summary(bench: &Bench, outcome: &Outcome) -> serde_json::Value {
    let figures = &outcome.figures;
    let wait = |percent| percentile(&figures.waits, percent);
    json!({
        "utilization": ratio(figures.utilization_ppm),
        "wanted": figures.wanted,
        "admitted": figures.admitted,
        "allowed": allowed(bench),
        "given_up": figures.refused,
        "given_up_beside_room": figures.wrongly_refused,
        "wait_ms": { "p50": wait(50), "p90": wait(90), "p99": wait(99), "longest": wait(100) },
        "messages_per_minute": minute(outcome.messages, bench),
        "messages_per_worker_minute": outcome.messages_per_worker_minute_milli / 1_000,
        "peak_over_bound": ratio(outcome.peak_over_bound_ppm),
        "fairness_error": figures.fairness_error_ppm.map(ratio),
        "seconds_without_grants": figures.zero_grant_seconds,
        "seed": outcome.seed,
    })
}

fn render(options: &BenchLimit, bench: &Bench, outcome: &Outcome, paint: Paint) -> String {
    let figures = &outcome.figures;
    let wait = |percent| percentile(&figures.waits, percent).map_or("-".to_owned(), |ms| length(ms * 1_000));
    let span = |span: Span| span_text(span.millis());
    let stated = |rate: tollgate_workflows::wire::config::RateJson| match rate.period_ms {
        1_000 => format!("{}/s", rate.count),
        60_000 => format!("{}/min", rate.count),
        ms => format!("{} per {}", rate.count, span_text(ms)),
    };
    let skew =
        options.skew.map_or(String::new(), |ppm| format!(", {}% of it in one of them", f64::from(ppm) / 1e4));
    let title = format!(
        "{}, burst {}, lease {}; {} workers that want {}{skew}; {} of virtual time, seed {}",
        stated(options.rate),
        bench.burst,
        span(bench.lease),
        bench.workers,
        stated(options.demand),
        span(bench.length),
        bench.seed
    );
    let lost = match figures.wrongly_refused {
        0 => String::new(),
        tokens => format!(", {tokens} of them although there was room"),
    };
    let lines = [
        (
            "utilization",
            format!("{:.3}", ratio(figures.utilization_ppm)),
            "of what a limiter admits that sees all work at once".to_owned(),
        ),
        (
            "admitted",
            figures.admitted.to_string(),
            format!("of {} wanted and {} that the limit allows", figures.wanted, allowed(bench)),
        ),
        ("given up", figures.refused.to_string(), format!("after {}{lost}", span(bench.patience))),
        (
            "wait",
            wait(50),
            format!("at the median; {} in 99 of 100 cases, {} at the longest", wait(99), wait(100)),
        ),
        (
            "messages",
            format!("{}/min", minute(outcome.messages, bench)),
            format!("{}/min from each worker", outcome.messages_per_worker_minute_milli / 1_000),
        ),
        (
            "peak",
            format!("{:.4}", ratio(outcome.peak_over_bound_ppm)),
            "of burst + rate * t, where the fleet came nearest to that; never above 1".to_owned(),
        ),
    ];
    let figures: String = lines
        .iter()
        .map(|(name, figure, says)| {
            format!("{name:<12} {} {}\n", paint.bold(&format!("{figure:>9}")), paint.dim(says))
        })
        .collect();
    format!("{title}\n\n{figures}")
}
