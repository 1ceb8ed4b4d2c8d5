//! Tells the host's log of limits beside which somebody starves: once when it begins and once when it is over. Workflow code
//! can't: it would tell it again at every replay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use temporalio_client::{
    Client, QueryRejectCondition, RpcOptions, UntypedQuery, UntypedWorkflow, WorkflowQueryOptions,
};
use temporalio_common::data_converters::RawValue;
use tokio::time::{Instant, timeout};
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::details::{clock, rate_text};
use tollgate_workflows::wire;
use tollgate_workflows::wire::explain::{StarvingLimitJson, StarvingLimitsJson};

/// How often a coordinator is asked: nobody starves who has waited for less than two leases, 30 s by default, and a server
/// takes one question at a time while a workflow is at work.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// A coordinator that doesn't answer within this is asked again later; that it is away is told elsewhere.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// What the log was told.
#[derive(Debug)]
pub struct Alarm {
    told: BTreeMap<String, BTreeSet<String>>,
    next: Instant,
}

impl Alarm {
    /// Nothing was told yet.
    pub fn new() -> Alarm {
        Alarm { told: BTreeMap::new(), next: Instant::now() + ASK_EVERY }
    }

    /// Asks the coordinators of the groups, if it is time for that, and logs what is new.
    pub async fn look(&mut self, client: &Client, groups: &[String]) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + ASK_EVERY;
        for group in groups {
            if let Ok(Some(answer)) = timeout(ANSWER_TIMEOUT, ask(client, group)).await {
                self.tell(group, &answer);
            }
        }
    }

    fn tell(&mut self, group: &str, answer: &StarvingLimitsJson) {
        let (new, over) = self.news(group, answer);
        for limit in new {
            let starving = &limit.starving;
            tracing::warn!(
                group,
                limit = limit.limit,
                who = starving.who,
                tokens = starving.tokens,
                since = clock(starving.since_us),
                used = rate_text(limit.used_micro, 0),
                rate = rate_text(limit.rate_micro, limit.rate_micro),
                reason = starving.reason,
                "the limit has room and somebody starves: {}; see `tollgate explain`",
                starving.text
            );
        }
        for limit in over {
            tracing::info!(group, limit, "nobody starves any more");
        }
    }

    /// Which limits starve somebody that didn't at the last answer, and which don't any more.
    fn news<'a>(
        &mut self,
        group: &str,
        answer: &'a StarvingLimitsJson,
    ) -> (Vec<&'a StarvingLimitJson>, Vec<String>) {
        let now: BTreeSet<String> = answer.limits.iter().map(|limit| limit.limit.clone()).collect();
        let before = self.told.insert(group.to_owned(), now.clone()).unwrap_or_default();
        let new = answer.limits.iter().filter(|limit| !before.contains(&limit.limit));
        (new.collect(), before.difference(&now).cloned().collect())
    }
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm::new()
    }
}

async fn ask(client: &Client, group: &str) -> Option<StarvingLimitsJson> {
    let options = WorkflowQueryOptions::builder()
        .reject_condition(QueryRejectCondition::NotOpen)
        .rpc_options(RpcOptions::builder().timeout(ANSWER_TIMEOUT).build())
        .build();
    let handle = client.get_workflow_handle::<UntypedWorkflow>(coordinator_id(group));
    let answer = handle.query(UntypedQuery::new("starving"), RawValue::default(), options).await.ok()?;
    wire::read(&answer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_workflows::wire::explain::StarvingJson;

    fn answer(limits: &[&str]) -> StarvingLimitsJson {
        let starving = StarvingJson {
            who: "host-1".to_owned(),
            tokens: 5,
            since_us: 1,
            reason: "crowded_burst".to_owned(),
            text: "the burst is small".to_owned(),
            help: String::new(),
        };
        let limit = |limit: &&str| StarvingLimitJson {
            limit: (*limit).to_owned(),
            used_micro: 1,
            rate_micro: 2,
            starving: starving.clone(),
        };
        StarvingLimitsJson { now_us: 1, limits: limits.iter().map(limit).collect() }
    }

    #[test]
    fn an_episode_is_told_once_and_its_end_once() {
        let mut alarm = Alarm::new();
        let mut news = |group: &str, limits: &[&str]| {
            let answer = answer(limits);
            let (new, over) = alarm.news(group, &answer);
            (new.iter().map(|limit| limit.limit.clone()).collect::<Vec<_>>(), over)
        };
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(news("a", &[]), (vec![], vec![]));
        assert_eq!(news("a", &["x"]), (texts(&["x"]), vec![]));
        assert_eq!(news("a", &["x", "y"]), (texts(&["y"]), vec![]));
        assert_eq!(news("b", &["x"]), (texts(&["x"]), vec![]), "groups are told apart");
        assert_eq!(news("a", &["y"]), (vec![], texts(&["x"])));
        assert_eq!(news("a", &["x", "y"]), (texts(&["x"]), vec![]), "a new episode");
    }
}
