//! `fleet worker`: a Temporal worker whose activities ask a gate.

use crate::calls::Calls;
use crate::local::LocalGate;
use crate::notes::{self, Notes, now_ns};
use crate::{Failure, WorkerOptions, connect};
use futures_util::future::try_join_all;
use std::time::Duration;
use temporalio_client::Client;
use temporalio_sdk::interceptors::ActivityInboundInterceptor;
use temporalio_sdk::runtime::worker_tuner::{FixedSizeSlotSupplier, TunerHolder};
use temporalio_sdk::runtime::{PollerBehavior, RuntimeOptions};
use temporalio_sdk::{Runtime, Worker};
use tokio::signal::unix::{SignalKind, signal};
use tollgate_worker::{ActivityGate, Gate, Options};

/// How often it looks whether the coordinator has answered.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long activities may run on once it is asked to stop.
const GRACE: Duration = Duration::from_secs(2);
/// Polls that are open at a time for each task queue.
const POLLS: usize = 4;

pub(crate) async fn run(options: &WorkerOptions) -> Result<(), Failure> {
    let notes = |kind| notes::path(&options.notes, &options.name, kind);
    let client = connect(format!("demo/{}", options.name)).await?;
    let mut gate = None;
    let mut metrics = None;
    let workers = if let Some(figures) = options.local_only {
        let own = || Ok(LocalGate::new(figures, &options.limit, Notes::open(&notes("admissions"))?));
        // One bucket for the whole process.
        let shared = std::sync::Arc::new(own().map_err(|error: std::io::Error| error)?);
        build(options, &client, || Shared(shared.clone()))?
    } else {
        let settings =
            Options::new().worker(&options.name).limit(&options.limit).admission_log(notes("admissions"));
        let connected = Gate::connect(client.clone(), settings).await?;
        tokio::spawn(note_leases(connected.clone(), Notes::open(&notes("leases"))?));
        if let Some(address) = options.metrics {
            let endpoint = connected.serve_metrics(address).await?;
            println!("metrics: http://{}/metrics", endpoint.address());
            metrics = Some(endpoint);
        }
        gate = Some(connected.clone());
        build(options, &client, || {
            ActivityGate::new(&connected).rule("fetch", &options.limit, 1).rule(
                "summarize",
                &options.limit,
                1,
            )
        })?
    };
    println!("ready");
    let mut terminate = signal(SignalKind::terminate())?;
    let stops: Vec<_> = workers.iter().map(Worker::shutdown_handle).collect();
    let runs = try_join_all(workers.into_iter().map(|mut worker| async move { worker.run().await }));
    tokio::pin!(runs);
    tokio::select! {
        ended = &mut runs => { ended?; }
        _ = terminate.recv() => {
            stops.iter().for_each(|stop| stop());
            runs.await?;
        }
    }
    if let Some(gate) = gate {
        gate.shutdown().await?;
    }
    // Also how it ended could be seen.
    drop(metrics);
    Ok(())
}

/// A Temporal worker for each task queue.
fn build<I: ActivityInboundInterceptor + 'static>(
    options: &WorkerOptions,
    client: &Client,
    interceptor: impl Fn() -> I,
) -> Result<Vec<Worker>, Failure> {
    let runtime = Runtime::from_current_tokio(RuntimeOptions::builder().heartbeat_interval(None).build()?)?;
    let slots = |count: u16| FixedSizeSlotSupplier::new(usize::from(count));
    let tuner = TunerHolder::builder()
        .workflow_task_slot_supplier(slots(2))
        .activity_task_slot_supplier(slots(options.slots))
        .local_activity_task_slot_supplier(slots(1))
        .nexus_task_slot_supplier(slots(1))
        .build();
    let worker = |queue: &String| {
        let calls = Calls::new(
            &options.downstream,
            Notes::open(&notes::path(&options.notes, &options.name, "calls"))?,
            options.local_only.is_none(),
        );
        let options = temporalio_sdk::WorkerOptions::new(queue.clone())
            .tuner(tuner.clone())
            .activity_task_poller_behavior(PollerBehavior::SimpleMaximum(POLLS))
            .graceful_shutdown_period(GRACE)
            .activity_inbound_interceptor(interceptor())
            .register_activities(calls)
            .build();
        Ok(Worker::new(&runtime, client.clone(), options)?)
    };
    options.queues.iter().map(worker).collect()
}

/// One gate for several Temporal workers.
struct Shared(std::sync::Arc<LocalGate>);

impl ActivityInboundInterceptor for Shared {
    fn execute_activity<'a>(
        &'a self,
        input: temporalio_sdk::interceptors::ExecuteActivityInput,
        next: temporalio_sdk::interceptors::Next<
            'a,
            temporalio_sdk::interceptors::ExecuteActivityInput,
            temporalio_sdk::interceptors::ExecuteActivityOutput<'a>,
        >,
    ) -> temporalio_sdk::interceptors::ExecuteActivityOutput<'a> {
        self.0.execute_activity(input, next)
    }
}

/// Notes each answer of the coordinator: a lease that was asked for later than the one before.
async fn note_leases(gate: Gate, notes: Notes) {
    let mut last_ns = 0;
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    loop {
        ticks.tick().await;
        let now_ns = now_ns();
        let state = gate.state();
        let Some(limit) = state.limits.first() else { continue };
        let Some(age) = limit.lease_age else { continue };
        let sent_ns = now_ns.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        // The two clocks are read one after the other; two requests are never this close.
        if sent_ns > last_ns + 5_000_000 {
            last_ns = sent_ns;
            notes.add(now_ns, format_args!("{}", limit.share.ppb()));
        }
    }
}
