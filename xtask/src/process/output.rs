//! Reads the files that children write to.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, Result};

/// A longer line is cut into pieces of this size, so that a child without line ends can't fill our memory.
const LINE_BYTES_MAX: usize = 64 << 10;
/// How much is read at once.
const CHUNK_BYTES: usize = 8 << 10;
/// How far from its end a file is read for its last lines.
const END_BYTES_MAX: u64 = 16 << 10;

/// Follows a file that grows, line by line.
#[derive(Debug)]
pub(super) struct Tail {
    file: File,
    /// What was read and not yet returned, without a complete line unless more than one came at once.
    pending: Vec<u8>,
}

impl Tail {
    /// Follows the file from the byte `start`.
    pub(super) fn open(path: &Path, start: u64) -> Result<Self> {
        let mut file = File::open(path).with_context(|| format!("can't read {}", path.display()))?;
        file.seek(SeekFrom::Start(start)).with_context(|| format!("can't read {}", path.display()))?;
        Ok(Self { file, pending: Vec::new() })
    }

    /// The next complete line without its end, or nothing if there is none yet.
    pub(super) fn next_line(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line = self.pending.drain(..=end).collect::<Vec<_>>();
                return Ok(Some(text(&line[..end])));
            }
            if self.pending.len() >= LINE_BYTES_MAX {
                return Ok(Some(text(&std::mem::take(&mut self.pending))));
            }
            let mut chunk = [0; CHUNK_BYTES];
            let count = self.file.read(&mut chunk).context("can't read the output of a process")?;
            if count == 0 {
                return Ok(None);
            }
            self.pending.extend_from_slice(&chunk[..count]);
        }
    }
}

/// The last lines of a file, for an error message: what can't be read is left out.
pub(super) fn last_lines(path: &Path, count: usize) -> Vec<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let start = file.metadata()?.len().saturating_sub(END_BYTES_MAX);
        file.seek(SeekFrom::Start(start))?;
        file.take(END_BYTES_MAX).read_to_end(&mut bytes)
    });
    if read.is_err() {
        return Vec::new();
    }
    let end = text(&bytes);
    let lines = end.lines().collect::<Vec<_>>();
    lines[lines.len().saturating_sub(count)..].iter().map(|line| (*line).to_owned()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_line_is_returned_once_it_is_complete_and_never_in_halves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"earlier\none\ntw").unwrap();
        let mut tail = Tail::open(&path, 8).unwrap();
        assert_eq!(tail.next_line().unwrap().as_deref(), Some("one"));
        assert_eq!(tail.next_line().unwrap(), None);
        file.write_all(b"o\n").unwrap();
        assert_eq!(tail.next_line().unwrap().as_deref(), Some("two"));
    }

    #[test]
    fn a_file_without_line_ends_does_not_grow_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, vec![b'x'; 3 * LINE_BYTES_MAX]).unwrap();
        let mut tail = Tail::open(&path, 0).unwrap();
        let line = tail.next_line().unwrap().unwrap();
        assert!(line.len() < LINE_BYTES_MAX + CHUNK_BYTES, "{}", line.len());
    }

    #[test]
    fn the_end_of_a_file_is_its_last_lines_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "a\nb\nc\n").unwrap();
        assert_eq!(last_lines(&path, 2), ["b", "c"]);
        assert_eq!(last_lines(&path, 9), ["a", "b", "c"]);
        assert!(last_lines(&folder.path().join("absent"), 2).is_empty());
    }
}
