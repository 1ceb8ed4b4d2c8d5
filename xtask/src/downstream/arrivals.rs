//! The log of arrivals: one JSON object a line, in the order of their times.
//!
//! ```text
//! {"event":"allowance","boot_ns":81230000000,"rate":50,"burst":20}
//! {"event":"arrival","boot_ns":81234567890,"path":"/items/1","status":200}
//! ```
//!
//! `boot_ns` are nanoseconds of CLOCK_BOOTTIME, which all processes of one machine share and which counts
//! through a suspend. The first line is the allowance at the start.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Longest path that is written, in bytes; the rest of a longer one is left out.
pub const PATH_BYTES_MAX: usize = 1_024;

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Entry {
    /// A call came in and was decided on.
    Arrival {
        /// When, in nanoseconds of CLOCK_BOOTTIME.
        boot_ns: u64,
        /// Path and query of the call.
        path: String,
        /// The HTTP status that it got: 200 or 429.
        status: u16,
    },
    /// From now on this is allowed.
    Allowance {
        /// When, in nanoseconds of CLOCK_BOOTTIME.
        boot_ns: u64,
        /// Calls a second.
        rate: u32,
        /// Calls at once.
        burst: u32,
    },
}

impl Entry {
    /// An arrival, with its path cut to [`PATH_BYTES_MAX`].
    pub fn arrival(boot_ns: u64, path: &str, status: u16) -> Self {
        let path = &path[..path.floor_char_boundary(PATH_BYTES_MAX)];
        Self::Arrival { boot_ns, path: path.to_owned(), status }
    }

    /// When it was, in nanoseconds of CLOCK_BOOTTIME.
    pub fn boot_ns(&self) -> u64 {
        match self {
            Self::Arrival { boot_ns, .. } | Self::Allowance { boot_ns, .. } => *boot_ns,
        }
    }
}

/// Nanoseconds of CLOCK_BOOTTIME.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Both parts are positive since the boot; a machine would have to run for 584 years to overflow.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Writes a log. Lines are buffered: the owner calls [`LogWriter::flush`] often and at the end.
#[derive(Debug)]
pub struct LogWriter {
    file: BufWriter<File>,
}

impl LogWriter {
    /// Starts a log, in place of a file that may be there.
    ///
    /// # Errors
    /// When the file can't be created.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("--log {}: can't create this file", path.display()))?;
        Ok(Self { file: BufWriter::new(file) })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When the buffer is full and can't be written.
    pub fn write(&mut self, entry: &Entry) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, entry)?;
        self.file.write_all(b"\n")
    }

    /// Hands everything to the operating system, where it outlives this process.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads a log. A last line without its end, which a kill leaves, is ignored.
///
/// # Errors
/// When the file can't be read or a complete line isn't an [`Entry`].
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("can't read the arrivals in {}", path.display()))?;
    text.split_inclusive('\n')
        .enumerate()
        .filter(|(_, line)| line.ends_with('\n'))
        .map(|(index, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}:{}: not an arrival", path.display(), index + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_without_a_torn_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrivals.jsonl");
        let entries = [
            Entry::Allowance { boot_ns: 1, rate: 50, burst: 20 },
            Entry::arrival(2, "/items/1?a=\"b\"", 200),
            Entry::arrival(3, &"é".repeat(PATH_BYTES_MAX), 429),
        ];
        let mut log = LogWriter::create(&path).unwrap();
        for entry in &entries {
            log.write(entry).unwrap();
        }
        log.file.write_all(b"{\"event\":\"arri").unwrap();
        log.flush().unwrap();
        assert_eq!(read(&path).unwrap(), entries);
    }

    #[test]
    fn a_line_that_is_no_arrival_is_an_error_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrivals.jsonl");
        std::fs::write(&path, "{\"event\":\"allowance\",\"boot_ns\":1,\"rate\":1,\"burst\":1}\n{}\n")
            .unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("arrivals.jsonl:2"));
    }
}
