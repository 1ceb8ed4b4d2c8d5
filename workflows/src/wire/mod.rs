//! The messages as JSON: what workers, operators, other SDKs and the Temporal CLI send and get.
//!
//! Names and fields are promises: fields may be added, never renamed; unknown ones are ignored and missing ones have
//! defaults where that makes sense. Times are microseconds since the Unix epoch (`_us`), durations are milliseconds
//! (`_ms`), amounts are tokens or thousandths of a token (`_milli`), shares are parts in 10^9 (`_ppb`).
//!
//! Everything is read through [`read`], which names the field that is wrong and never fails a workflow task.

mod bound;
pub mod conduct;
pub mod config;
pub mod escrow;
pub mod explain;
pub mod granted;
pub mod layers;
pub mod lease;
pub mod outlook;
pub mod status;

use serde::Serialize;
use serde::de::DeserializeOwned;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::Payload;

/// The largest message that is looked at: far above what a worker with the most cells sends.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// How much of an error is kept: enough to see what was wrong.
const ERROR_CHARS_MAX: usize = 300;
/// How much of the path to a wrong field is kept: three long names.
const PATH_CHARS_MAX: usize = 120;

/// Why a message can't be taken: names the field, what was given, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Unreadable {
    /// An error with this text, cut to a bounded length.
    pub fn new(text: impl ToString) -> Unreadable {
        let text = text.to_string();
        Unreadable(match text.char_indices().nth(ERROR_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        })
    }
    /// The same, with the field that the problem is in.
    pub fn of(field: &str, problem: impl std::fmt::Display) -> Unreadable {
        Unreadable::new(format!("{field}: {problem}"))
    }
}

impl From<tollgate_core::limit::OutOfRange> for Unreadable {
    fn from(problem: tollgate_core::limit::OutOfRange) -> Unreadable {
        Unreadable::new(problem)
    }
}

/// Reads one JSON message.
///
/// # Errors
/// [`Unreadable`] when there is not exactly one payload, it isn't JSON, or a field has the wrong shape.
pub fn read<T: DeserializeOwned>(input: &RawValue) -> Result<T, Unreadable> {
    let payload = match input.payloads.as_slice() {
        [] => return Err(Unreadable::new("no input given, one JSON object is wanted")),
        [payload] => payload,
        more => {
            return Err(Unreadable::new(format!("{} inputs given, one JSON object is wanted", more.len())));
        }
    };
    let encoding = payload.metadata.get("encoding").map(|name| String::from_utf8_lossy(name).into_owned());
    if !matches!(encoding.as_deref(), None | Some("json/plain")) {
        let encoding = encoding.unwrap_or_default();
        return Err(Unreadable::new(format!("the input's encoding is {encoding:?}, allowed: json/plain")));
    }
    read_json(&payload.data)
}

/// Reads JSON text.
///
/// # Errors
/// [`Unreadable`] when it isn't JSON or a field has the wrong shape.
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Unreadable> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(Unreadable::new(format!(
            "the message has {} bytes, allowed: up to {MESSAGE_BYTES_MAX}",
            text.len()
        )));
    }
    // Looking for the path of an error takes as long as reading: only where there is one.
    if let Ok(value) = serde_json::from_slice(text) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let problem = with_ranges(&error.inner().to_string());
        // A path that says more than the problem is cut, so that there is room for both.
        let path: String = path.chars().take(PATH_CHARS_MAX).collect();
        if path == "." { Unreadable::new(problem) } else { Unreadable::of(&path, problem) }
    })?;
    json.end().map_err(Unreadable::new)?;
    Ok(value)
}

/// Says what is allowed where serde only names a type.
fn with_ranges(problem: &str) -> String {
    let mut text = problem.to_owned();
    for (name, max) in [("expected u64", u64::MAX), ("expected u32", u32::MAX.into())] {
        text = text.replace(name, &format!("allowed: whole numbers from 0 to {max}"));
    }
    text
}

/// Writes one JSON message.
pub fn write(message: &impl Serialize) -> RawValue {
    // Our own types have string keys and no failing serializers.
    let data = serde_json::to_vec(message).unwrap_or_default();
    payload("json/plain", data)
}

/// One payload with its encoding.
pub fn payload(encoding: &str, data: Vec<u8>) -> RawValue {
    let metadata = [("encoding".to_owned(), encoding.as_bytes().to_vec())].into();
    RawValue::new(vec![Payload { metadata, data, ..Default::default() }])
}
