//! What activities of a type cost.

use crate::gate::Gate;
use crate::set::Set;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use temporalio_sdk::interceptors::ExecuteActivityInput;
use tollgate_core::limit::{CellKey, OutOfRange};

type Function = dyn Fn(Input<'_>) -> Result<u64, String> + Send + Sync;

/// Where an activity's input is.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// A Temporal worker has it.
    Task(&'a ExecuteActivityInput),
    /// Whoever calls the activity has it.
    Value(&'a (dyn Any + Sync)),
    Nowhere,
}

impl<'a> Input<'a> {
    fn get<I: Any>(self) -> Option<&'a I> {
        match self {
            Input::Task(task) => task.args_ref(),
            Input::Value(value) => (value as &dyn Any).downcast_ref(),
            Input::Nowhere => None,
        }
    }
}

/// What an activity of a type is charged: a limit, and of one or more of its meters a cost, which is fixed or computed from the
/// activity's input. For [`ActivityGate::with`](crate::ActivityGate::with).
///
/// ```
/// use std::time::Duration;
/// use tollgate_worker::Rule;
///
/// struct Prompt { text: String, answer_max: u64 }
///
/// let summarize = Rule::new("openai")
///     .charge_by("tokens", |prompt: &Prompt| {
///         let tokens = u64::try_from(prompt.text.len() / 4).map_err(|_| "too long")?;
///         Ok::<u64, &str>(tokens + prompt.answer_max)
///     })
///     .in_flight(1);
///
/// // A downstream whose calls may hang: each is charged as if it took its whole timeout.
/// let search = Rule::new("search").in_flight_factor(Duration::from_secs(30), Duration::from_secs(3)).unwrap();
/// ```
///
/// A function that fails, panics, gives 0, or gives more than the meter's burst makes the activity fail for good, with type
/// [`COST_UNKNOWN`](crate::interceptor::COST_UNKNOWN): another attempt would have the same input. So does an input of another
/// type than the function takes. Give 0 of a meter by leaving it out of the rule.
#[derive(Clone)]
pub struct Rule {
    limit: String,
    charges: Vec<(String, Cost)>,
}

#[derive(Clone)]
enum Cost {
    Fixed(u64),
    By(Arc<Function>),
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = |cost: &Cost| match cost {
            Cost::Fixed(cost) => cost.to_string(),
            Cost::By(_) => "by a function".to_owned(),
        };
        let charges = self.charges.iter().map(|(meter, of)| (meter, cost(of)));
        f.debug_struct("Rule")
            .field("limit", &self.limit)
            .field("charges", &charges.collect::<Vec<_>>())
            .finish()
    }
}

impl Rule {
    /// One of meter `requests` of `limit`.
    pub fn new(limit: impl Into<String>) -> Rule {
        Rule { limit: limit.into(), charges: vec![(CellKey::METER.to_owned(), Cost::Fixed(1))] }
    }

    /// One of `meter` of `limit`, and nothing of meter `requests`.
    pub fn of(limit: impl Into<String>, meter: impl Into<String>) -> Rule {
        Rule { limit: limit.into(), charges: vec![(meter.into(), Cost::Fixed(1))] }
    }

    /// The cost by the first meter. Default: 1.
    #[must_use]
    pub fn cost(self, cost: u64) -> Rule {
        self.first(Cost::Fixed(cost))
    }

    /// The cost by the first meter, computed from the activity's input as the activity takes it.
    #[must_use]
    pub fn cost_by<I: Any, E: fmt::Display>(
        self,
        cost: impl Fn(&I) -> Result<u64, E> + Send + Sync + 'static,
    ) -> Rule {
        self.first(by(cost))
    }

    /// Charges another meter too. All are charged, or the activity doesn't start.
    #[must_use]
    pub fn charge(self, meter: impl Into<String>, cost: u64) -> Rule {
        self.and(meter, Cost::Fixed(cost))
    }

    /// Charges another meter too, with a cost that is computed from the activity's input as the activity takes it.
    #[must_use]
    pub fn charge_by<I: Any, E: fmt::Display>(
        self,
        meter: impl Into<String>,
        cost: impl Fn(&I) -> Result<u64, E> + Send + Sync + 'static,
    ) -> Rule {
        self.and(meter, by(cost))
    }

    /// Holds `permits` of meter `in_flight` while the activity runs. When the lease that they live by is lost, the activity is
    /// dropped and fails with type [`PERMIT_LOST`](crate::interceptor::PERMIT_LOST).
    #[must_use]
    pub fn in_flight(self, permits: u64) -> Rule {
        self.charge(CellKey::IN_FLIGHT, permits)
    }

    /// Makes the cost by the first meter `timeout / expected_response`, rounded up: where a rate was chosen for the usual response
    /// and nothing limits what is in flight, so many calls may hang at once as would be in flight if all took their timeout.
    ///
    /// Its price: while responses are as usual, only that part of the rate is used (a tenth, for a timeout of 30 s and 3 s
    /// expected). A meter of what is in flight ([`Rule::in_flight`]) has no such price: prefer it where it can be had.
    ///
    /// # Errors
    /// [`OutOfRange`] for field `expected_response`: it must be above zero and at most the timeout.
    pub fn in_flight_factor(
        self,
        timeout: Duration,
        expected_response: Duration,
    ) -> Result<Rule, OutOfRange> {
        if expected_response.is_zero() || expected_response > timeout {
            return Err(OutOfRange {
                field: "expected_response",
                given: format!("{expected_response:?} with a timeout of {timeout:?}"),
                allowed: "above zero, up to the timeout",
            });
        }
        let factor = timeout.as_nanos().div_ceil(expected_response.as_nanos());
        Ok(self.cost(u64::try_from(factor).unwrap_or(u64::MAX)))
    }

    fn first(mut self, cost: Cost) -> Rule {
        if let Some((_, first)) = self.charges.first_mut() {
            *first = cost;
        }
        self
    }

    fn and(mut self, meter: impl Into<String>, cost: Cost) -> Rule {
        self.charges.push((meter.into(), cost));
        self
    }

    pub(crate) fn at(self, gate: &Gate) -> Profile {
        let set = gate.set(&self.limit, self.charges.iter().map(|(meter, _)| meter.as_str()));
        Profile { rule: self, set }
    }
}

fn by<I: Any, E: fmt::Display>(cost: impl Fn(&I) -> Result<u64, E> + Send + Sync + 'static) -> Cost {
    Cost::By(Arc::new(move |input: Input<'_>| match input.get::<I>() {
        Some(input) => cost(input).map_err(|error| error.to_string()),
        None => Err(format!("the activity has no input of type {}", std::any::type_name::<I>())),
    }))
}

/// A rule at a gate.
#[derive(Debug)]
pub(crate) struct Profile {
    rule: Rule,
    pub set: Arc<Set>,
}

/// No cost can be told.
#[derive(Debug)]
pub(crate) struct CostError {
    pub meter: String,
    pub problem: String,
}

impl Profile {
    pub(crate) fn limit(&self) -> &str {
        &self.rule.limit
    }

    /// What the first meter is, if that is all that a workflow's own permit can stand for.
    pub(crate) fn is_by_requests(&self) -> bool {
        self.rule.charges.first().is_some_and(|(meter, _)| meter == CellKey::METER)
    }

    /// Whether a function says what this meter costs.
    pub(crate) fn is_computed(&self, meter: &str) -> bool {
        self.rule.charges.iter().any(|(other, cost)| other == meter && matches!(cost, Cost::By(_)))
    }

    /// The costs of an activity with this input, in the order in which the meters were named.
    pub(crate) fn costs(&self, input: Input<'_>) -> Result<Vec<u64>, CostError> {
        let costs = self.rule.charges.iter().map(|(meter, cost)| {
            let wrong = |problem| CostError { meter: meter.clone(), problem };
            let computed = match cost {
                Cost::Fixed(cost) => return Ok(*cost),
                Cost::By(function) => function,
            };
            // Only the message is kept of a panic; what it may have left half-done is the function's own.
            match catch_unwind(AssertUnwindSafe(|| computed(input))) {
                Ok(Ok(0)) => Err(wrong("it is 0, allowed: 1 to the meter's burst".to_owned())),
                Ok(Ok(cost)) => Ok(cost),
                Ok(Err(problem)) => Err(wrong(problem)),
                Err(panic) => Err(wrong(format!("the function panicked: {}", said(&*panic)))),
            }
        });
        costs.collect()
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}
