//! A process that is forked while it holds a lease.

use crate::world::{limit, pass, recorded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate_worker::testing::TestGroup;
use tollgate_worker::{AcquireError, Limit, Permit, Reason};

/// A child that hangs ends after this.
const CHILD_SECONDS_MAX: u32 = 20;
/// What a child returns that panicked.
const PANICKED: i32 = 255;

/// What `child` returns in a forked child of this process.
#[expect(unsafe_code, reason = "this is about fork itself")]
fn in_child(child: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child has one thread, and copies of locks that others may have held. It runs only `child`, which takes none
    // of those (the allocator looks after its own), and ends without running anything else of this process.
    unsafe {
        match libc::fork() {
            -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
            0 => {
                libc::alarm(CHILD_SECONDS_MAX);
                let code = catch_unwind(AssertUnwindSafe(child));
                libc::_exit(code.map_or(PANICKED, i32::from))
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
    let group = TestGroup::new([limit("api", 1_000, 1_000)]);
    let gate = group.gate().await;
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

/// What children find that go on with their parent's runtime: 0 for a new lease, 1 for refusals only; more when something was
/// said in the parent's name. A thread uses the gate meanwhile if it shall be `busy`.
fn children(count: usize, busy: bool) -> Vec<i32> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let plenty = 1_000_000_000;
    let (gate, recorder) = runtime.block_on(async {
        let group = TestGroup::new([limit("api", plenty, plenty)]);
        let (gate, recorder) = recorded(&group);
        pass(100).await;
        (gate, recorder)
    });
    let parent = gate.state().incarnation;
    let (sent, api) = (recorder.sent().len(), gate.limit("api"));
    let go_on = || {
        runtime.block_on(async {
            let mut granted = false;
            for _ in 0..20 {
                granted |= api.try_acquire(1).is_ok();
                pass(100).await;
            }
            let waited = tokio::time::timeout(Duration::from_secs(1), api.acquire()).await;
            let agree = matches!(waited, Ok(Ok(_))) == granted;
            let stopped = gate.shutdown().await.is_ok();
            let revoked = recorder.revoked.lock().unwrap().clone();
            let said = recorder.sent()[sent..].iter().chain(&revoked).all(|said| said.incarnation != parent);
            u8::from(!granted) + 2 * u8::from(!agree) + 4 * u8::from(!stopped) + 8 * u8::from(!said)
        })
    };
    let stop = AtomicBool::new(!busy);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(api.try_acquire(1));
            }
        });
        let codes = (0..count).map(|_| in_child(go_on)).collect();
        stop.store(true, Ordering::Relaxed);
        codes
    })
}

#[test]
fn a_child_that_goes_on_with_the_runtime_is_a_worker_of_its_own() {
    assert_eq!(children(2, false), [0, 0]);
}

#[test]
fn a_child_never_waits_for_threads_that_it_does_not_have() {
    let codes = children(50, true);
    assert!(codes.iter().all(|code| *code <= 1), "{codes:?}");
}
