//! Names of limits: any text is a key of its own or refused, and names that are made up take no room.

use crate::world::{limit, pass};
use std::time::Duration;
use tollgate_worker::testing::{TestGroup, TestLimit};
use tollgate_worker::{AcquireError, Reason};

#[tokio::test(start_paused = true)]
async fn odd_names_are_keys_of_their_own_or_refused() {
    let good = [
        "2001:db8::1",
        "a b",
        "na\u{ef}ve",
        "nai\u{308}ve",
        "\u{438}\u{43c}\u{44f}",
        "\u{1f6a6}",
        "../x",
        "%2F",
        "A",
        "a",
    ];
    let group = TestGroup::new(good.iter().enumerate().map(|(n, name)| limit(name, 0, n as u64 + 1)));
    let gate = group.gate().await;
    pass(100).await;
    for (n, name) in good.iter().enumerate() {
        let mut taken = 0;
        while gate.acquire(name).timeout(Duration::from_secs(1)).await.is_ok() {
            taken += 1;
        }
        assert_eq!(taken, n + 1, "{name:?} has tokens of its own");
    }
    let long = "x".repeat(1_000);
    for name in ["", " a", "a\n", "a\0b", &long] {
        let refused = gate.acquire(name).await.unwrap_err();
        assert!(matches!(refused, AcquireError::InvalidLimit(_)), "{name:?}: {refused}");
        assert!(refused.to_string().contains("1 to 200 bytes of text") && refused.to_string().len() < 200);
        let refused = group.strict().acquire(name).await.unwrap_err();
        assert!(matches!(refused, AcquireError::InvalidLimit(_)), "{name:?}: {refused}");
    }
}

/// Zero where that can't be seen.
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn names_that_are_asked_for_once_take_no_room_and_nothing_from_others() {
    const ONCE: usize = 200_000;
    let busy: Vec<String> = (0..10).map(|n| format!("busy-{n}")).collect();
    let group = TestGroup::new(busy.iter().map(|name| TestLimit::per(Duration::from_secs(10), name, 1)));
    let gate = group.gate().await;
    pass(100).await;
    let busy: Vec<_> = busy.iter().map(|name| gate.limit(name)).collect();
    for limit in &busy {
        drop(limit.acquire().timeout(Duration::from_secs(1)).await.unwrap());
    }
    let before = resident_pages();
    let mut too_many = 0;
    for n in 0..ONCE {
        match gate.limit(&format!("once-{n}")).try_acquire(1) {
            Err(AcquireError::TooManyLimits { max: 1_000, .. }) => too_many += 1,
            Err(error) => assert_eq!(error.reason(), Some(Reason::Starting), "{error}"),
            Ok(permit) => panic!("{permit:?} of a limit that isn't there"),
        }
    }
    assert_eq!(too_many, ONCE - 990);
    assert_eq!(gate.state().limits.len(), 1_000);
    // Each that was kept would take a kilobyte.
    let grown = resident_pages().saturating_sub(before) * 4_096;
    assert!(grown < 64 << 20, "{} MiB for {ONCE} names", grown >> 20);
    assert!(busy.iter().all(|limit| limit.try_acquire(1).is_err()), "what is used stays used");
    pass(10_000).await;
    for limit in &busy {
        assert!(limit.acquire().timeout(Duration::from_secs(5)).await.is_ok());
    }
}
