//! A process that is forked while it holds a lease.

use crate::world::{World, limit, pass};
use tollgate_worker::{AcquireError, Limit, Options, Permit, Reason};

/// A child that hangs ends after this.
const CHILD_SECONDS_MAX: u32 = 20;

/// What `child` returns in a forked child of this process.
#[expect(unsafe_code, reason = "this is about fork itself")]
fn in_child(child: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child has one thread and copies of locks that others may have held. It runs only `child`, which takes
    // no lock and allocates nothing, and ends without running anything else of this process.
    unsafe {
        match libc::fork() {
            -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
            0 => {
                libc::alarm(CHILD_SECONDS_MAX);
                libc::_exit(child().into())
            }
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
                libc::WEXITSTATUS(status)
            }
        }
    }
}

/// How many of three requests are not refused as in a process without a lease, and whether the parent's permit seems valid.
fn ask(limit: &Limit, parents: &Permit) -> u8 {
    let granted = (0..3).filter(|_| {
        let answer = limit.try_acquire(1);
        !matches!(answer, Err(AcquireError::Refused { refused, .. }) if refused.reason == Reason::Starting)
    });
    u8::try_from(granted.count()).unwrap_or(u8::MAX) + 10 * u8::from(parents.is_valid())
}

#[tokio::test(start_paused = true)]
async fn a_child_is_granted_nothing_of_its_parents_lease() {
    let world = World::new(vec![limit("api", 1_000, 1_000)]);
    let gate = world.gate(Options::new().limit("api"));
    pass(100).await;
    let limit = gate.limit("api");
    let permit = limit.try_acquire(1).unwrap();
    assert!(permit.is_valid());

    assert_eq!(in_child(|| ask(&limit, &permit)), 0);
    let in_grandchild = || u8::try_from(in_child(|| ask(&limit, &permit))).unwrap_or(u8::MAX);
    assert_eq!(in_child(in_grandchild), 0);

    // The parent goes on.
    assert!(permit.is_valid() && limit.try_acquire(1).is_ok());
    gate.shutdown().await.unwrap();
}
