//! Notices that a process is the copy of another one.
//!
//! After `fork(2)` the child has the tokens and the leases of its parent, in memory, and nobody who keeps them: what it took
//! would be spent twice. So there is a word of memory that the kernel clears in the child (`MADV_WIPEONFORK`), whatever
//! call made it, before any code can run there. A [`Home`] remembers what the word was; where that differs nothing is granted.

use crate::random;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The word in a process that has not marked itself, as in a new child.
const UNMARKED: u64 = 0;

/// The process in which something was made.
#[derive(Debug)]
pub(crate) struct Home {
    word: &'static AtomicU64,
    mark: AtomicU64,
}

impl Home {
    /// This process.
    pub(crate) fn here() -> Result<Home, getrandom::Error> {
        let home = Home { word: word(), mark: AtomicU64::new(UNMARKED) };
        home.move_here()?;
        Ok(home)
    }

    /// Whether this is still the same process. A child that was forked just now is not.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.mark.load(Ordering::Relaxed)
    }

    /// Makes this process the home, once nothing is left of what the other one held.
    pub(crate) fn move_here(&self) -> Result<(), getrandom::Error> {
        let drawn = random::nonce()?.wrapping_add(1);
        // Whoever marks the process first marks it for all.
        let mark = match self.word.compare_exchange(UNMARKED, drawn, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => drawn,
            Err(mark) => mark,
        };
        self.mark.store(mark, Ordering::Release);
        Ok(())
    }
}

/// The word of this process. Where there is no such memory it is an ordinary one: then a child is noticed only by its keeper,
/// which looks at the process id in each of its rounds.
fn word() -> &'static AtomicU64 {
    static WORD: OnceLock<&AtomicU64> = OnceLock::new();
    static ORDINARY: AtomicU64 = AtomicU64::new(UNMARKED);
    WORD.get_or_init(|| {
        wiped_on_fork().unwrap_or_else(|| {
            tracing::warn!("no memory that is cleared on fork: don't use a gate in a forked child");
            &ORDINARY
        })
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[expect(unsafe_code, reason = "no safe interface gives memory that is cleared on fork")]
fn wiped_on_fork() -> Option<&'static AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let size = size_of::<AtomicU64>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, so nobody else refers to it; it is at least `size` bytes of zeros, aligned to a page, and is
    // never unmapped, so that the reference may live as long as the process. That the kernel clears it in a child
    // doesn't change memory under a running thread: it happens before the child has any.
    unsafe {
        let page = mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE).ok()?;
        madvise(page, size, Advice::LinuxWipeOnFork).ok()?;
        Some(&*page.cast::<AtomicU64>())
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn wiped_on_fork() -> Option<&'static AtomicU64> {
    None
}
