//! Why a command failed, in words and as an exit code.

use serde_json::json;

/// Everything went well.
pub const EXIT_OK: u8 = 0;
/// The server or the configuration refused, or something else went wrong.
pub const EXIT_FAILED: u8 = 1;
/// The command line or the connection settings are wrong.
pub const EXIT_USAGE: u8 = 2;
/// `tollgate plan` alone: something would change. Wrong usage of it is [`EXIT_FAILED`].
pub const EXIT_CHANGES: u8 = 2;
/// Nobody answered: Temporal isn't reachable, no coordinator host is up, or the time was over.
pub const EXIT_NO_ANSWER: u8 = 3;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The command line or the connection settings are wrong.
    #[error("{0}")]
    Usage(String),
    /// The change was refused and nothing was changed; one entry per problem.
    #[error("refused, nothing was changed:{}", list(.0))]
    Refused(Vec<String>),
    /// Nobody answered.
    #[error("{0}")]
    NoAnswer(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// What the process ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => EXIT_USAGE,
            Failure::Refused(_) | Failure::Failed(_) => EXIT_FAILED,
            Failure::NoAnswer(_) => EXIT_NO_ANSWER,
        }
    }

    /// The same, with [`EXIT_FAILED`] instead of [`EXIT_USAGE`].
    pub fn not_usage(self) -> Failure {
        match self {
            Failure::Usage(text) => Failure::Failed(text),
            other => other,
        }
    }

    /// The same with other words.
    pub fn map(self, change: impl Fn(String) -> String) -> Failure {
        match self {
            Failure::Usage(text) => Failure::Usage(change(text)),
            Failure::Refused(problems) => Failure::Refused(problems.into_iter().map(change).collect()),
            Failure::NoAnswer(text) => Failure::NoAnswer(change(text)),
            Failure::Failed(text) => Failure::Failed(change(text)),
        }
    }

    /// As one line of JSON: `error`, and `problems` when a change was refused.
    pub fn to_json(&self) -> String {
        match self {
            Failure::Refused(problems) => {
                json!({ "error": "refused, nothing was changed", "problems": problems }).to_string()
            }
            other => json!({ "error": other.to_string() }).to_string(),
        }
    }
}

fn list(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("\n  {}", crate::table::printable(problem))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_a_line_of_its_own() {
        let failure = Failure::Refused(vec!["rate is 7".to_owned(), "burst is 8".to_owned()]);
        assert_eq!(failure.to_string(), "refused, nothing was changed:\n  rate is 7\n  burst is 8");
        assert_eq!(
            failure.to_json(),
            r#"{"error":"refused, nothing was changed","problems":["rate is 7","burst is 8"]}"#
        );
        assert_eq!(failure.exit_code(), 1);
    }
}
