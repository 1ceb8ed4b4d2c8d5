//! Workers as the coordinator sees them: they ask, acknowledge, report, and ask again with the same bytes.

use crate::world::{Sent, World, update_once};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use temporalio_client::{Client, UntypedWorkflowHandle};
use tollgate_workflows::wire;
use tollgate_workflows::wire::lease::{
    ActingJson, CellReportJson, HeartbeatJson, HeartbeatReplyJson, LeaseJson, ReplyJson,
};

/// The bound of the first pause before the same bytes go out again.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The bound of the longest pause.
const RETRY_MAX: Duration = Duration::from_secs(4);
/// When a heartbeat counts as lost.
const GIVE_UP: Duration = Duration::from_secs(60);

/// One worker of one limit.
pub(crate) struct Worker {
    coordinator: UntypedWorkflowHandle<Client>,
    number: u32,
    limit: String,
    seq: u64,
    sent: u64,
    pub(crate) used: u64,
    pub(crate) acting: Option<ActingJson>,
    pub(crate) log: Log,
}

/// What a worker has seen.
#[derive(Default)]
pub(crate) struct Log {
    /// How long each heartbeat took until its answer, tries again included.
    pub(crate) took: Vec<Duration>,
    /// Errors that led to another try, by text.
    pub(crate) tries: BTreeMap<String, u64>,
}

impl Log {
    /// Takes in another worker's.
    pub(crate) fn add(&mut self, other: Log) {
        self.took.extend(other.took);
        for (text, count) in other.tries {
            *self.tries.entry(text).or_default() += count;
        }
    }

    /// The median, the 99th percentile and the slowest.
    pub(crate) fn percentiles(&mut self) -> (Duration, Duration, Duration) {
        self.took.sort();
        let at = |percent: usize| self.took[(self.took.len() * percent / 100).min(self.took.len() - 1)];
        (at(50), at(99), at(100))
    }
}

impl Worker {
    /// A worker that hasn't asked yet.
    pub(crate) fn new(world: &World, number: u32, limit: &str) -> Worker {
        let coordinator = world.handle(&world.coordinator());
        Worker {
            coordinator,
            number,
            limit: limit.to_owned(),
            seq: 0,
            sent: 0,
            used: 0,
            acting: None,
            log: Log::default(),
        }
    }

    /// The incarnation, 32 digits.
    pub(crate) fn incarnation(&self) -> String {
        format!("{:032x}", 0xabcd_0000_u128 + u128::from(self.number))
    }

    /// The next request: acknowledges the last reply.
    pub(crate) fn request(&mut self) -> HeartbeatJson {
        self.seq += 1;
        let cell = CellReportJson {
            limit: self.limit.clone(),
            meter: "requests".to_owned(),
            tier: "default".to_owned(),
            borrowed: false,
            for_tier: None,
            acting: self.acting,
            held_milli: 0,
            used: self.used,
            returned_milli: 0,
            debt_milli: 0,
            out: 0,
            demand_micro: 5_000_000,
            waiting: 0,
            largest: 1,
        };
        HeartbeatJson {
            incarnation: self.incarnation(),
            seq: self.seq,
            nonce: u64::from(self.number) * 1_000_000 + self.seq,
            worker: format!("worker-{}", self.number),
            cells: vec![cell],
        }
    }

    /// Sends until it is answered, always the same bytes.
    pub(crate) async fn send(&mut self, request: &HeartbeatJson) -> ReplyJson {
        let began = Instant::now();
        self.sent += 1;
        let id = format!("{}-{}", request.incarnation, self.sent);
        for attempt in 0.. {
            let sent =
                update_once(&self.coordinator, "heartbeat", wire::write(request), Some(id.clone())).await;
            let problem = match sent {
                Ok(value) => match crate::world::read(&value) {
                    HeartbeatReplyJson::Ok(reply) => {
                        self.log.took.push(began.elapsed());
                        assert_eq!(reply.seq, request.seq, "the answer is to another request");
                        return reply;
                    }
                    HeartbeatReplyJson::Refused(refused) if refused.reason == "busy" => refused.reason,
                    HeartbeatReplyJson::Refused(refused) => panic!("refused: {refused:?}"),
                },
                Err(Sent::Again(problem)) => problem,
                Err(Sent::Refused(problem)) => panic!("an error reached the worker: {problem}"),
            };
            assert!(began.elapsed() < GIVE_UP, "no answer within {GIVE_UP:?}: {problem}");
            *self.log.tries.entry(problem).or_default() += 1;
            back_off(attempt, u64::from(self.number) * 1_000_003 + self.sent).await;
        }
        unreachable!("attempts have no end")
    }

    /// One heartbeat. Every tenth is sent once more after its answer, as if that had been lost: it must come again.
    pub(crate) async fn beat(&mut self) -> ReplyJson {
        let request = self.request();
        let reply = self.send(&request).await;
        if request.seq.is_multiple_of(10) {
            let again = self.send(&request).await;
            assert_eq!(again, reply, "one request has two answers");
        }
        self.take(&reply);
        reply
    }

    /// Acts on a reply from now on, and uses one token.
    pub(crate) fn take(&mut self, reply: &ReplyJson) {
        self.acting = self.lease(reply).map(|lease| ActingJson {
            epoch: reply.epoch,
            seq: reply.seq,
            share_ppb: lease.share_ppb,
            cap_milli: lease.cap_milli,
        });
        self.used += 1;
    }

    /// The lease in a reply.
    pub(crate) fn lease<'a>(&self, reply: &'a ReplyJson) -> Option<&'a LeaseJson> {
        reply.cells.first().and_then(|cell| cell.lease.as_ref())
    }
}

/// Waits before another try: anywhere up to a bound that doubles. Trying again soon, or all at once, keeps a workflow with
/// too many updates in flight from ever finishing one.
async fn back_off(attempt: u32, seed: u64) {
    let bound = (RETRY_MIN * 2u32.pow(attempt.min(10))).min(RETRY_MAX);
    let mixed = (seed ^ u64::from(attempt) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let part = u32::try_from(mixed >> 54).unwrap();
    tokio::time::sleep(bound / 8 + bound * part / 1_024).await;
}
