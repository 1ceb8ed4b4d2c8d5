//! Messages that no honest worker sends, straight at the ledger: whatever comes, its sums hold.

use proptest::prelude::*;
use tollgate_core::curve::Rate;
use tollgate_core::ledger::strict::{Acquire, Settle};
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Version};
use tollgate_core::message::{
    Acting, CellOutcome, CellReport, Incarnation, LeaseName, Reply, Request, RequestError,
};
use tollgate_core::units::{Amount, LedgerTime, Share, Span};

const BURST: u64 = 20;
const EPOCH: u64 = 7;

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        (0u64..2 * BURST * 1_000).prop_map(Amount::from_milli),
        Just(Amount(i128::MAX)),
        Just(Amount(i128::MIN)),
        any::<i128>().prop_map(Amount),
    ]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, Just(u64::MAX), any::<u64>()]
}

fn acting() -> impl Strategy<Value = Option<Acting>> {
    let name = (prop_oneof![Just(EPOCH), 0u64..10, any::<u64>()], 0u64..8);
    let acting = (name, 0u32..=1_000_000_000, amount()).prop_map(|((epoch, seq), share, cap)| Acting {
        name: LeaseName { epoch, seq },
        share: Share::from_ppb(share).unwrap(),
        cap,
    });
    proptest::option::weighted(0.8, acting)
}

fn report() -> impl Strategy<Value = CellReport> {
    let figures = (amount(), count(), amount(), amount(), count(), count(), count(), count());
    (any::<bool>(), acting(), figures).prop_map(|(borrowed, acting, figures)| {
        let (held, used, returned, debt, out, demand, waiting, largest) = figures;
        let key = CellKey::of("api");
        let for_tier = Some("high".to_owned()).filter(|_| largest % 2 == 0);
        CellReport {
            key,
            borrowed,
            for_tier,
            acting,
            held,
            used,
            returned,
            debt,
            out,
            demand,
            waiting,
            largest,
        }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let seq = prop_oneof![8 => 0u64..8, 1 => Just(u64::MAX)];
    let cells = proptest::collection::vec(report(), 0..4);
    (0u128..4, seq, 0u64..3, cells).prop_map(|(incarnation, seq, nonce, cells)| Request {
        incarnation: Incarnation(incarnation),
        seq,
        nonce,
        worker: "w".into(),
        cells,
    })
}

fn input() -> impl Strategy<Value = Input> {
    let permit = (0u8..4, 0u64..2 * BURST, 0u64..10_000_000, any::<bool>());
    prop_oneof![
        10 => request().prop_map(Input::Heartbeat),
        2 => request().prop_map(Input::Report),
        1 => request().prop_map(Input::Revoke),
        1 => (0u128..4).prop_map(|incarnation| Input::Evict(Incarnation(incarnation))),
        1 => Just(Input::Tick),
        2 => permit.prop_map(|(id, cost, lease, auto)| Input::Acquire(Acquire {
            id: format!("p{id}"),
            client: "c".into(),
            key: CellKey::of("api"),
            cost,
            lease: Span(lease),
            auto,
        })),
        1 => (0u8..4, count()).prop_map(|(id, used)| Input::Settle(Settle {
            id: format!("p{id}"),
            key: CellKey::of("api"),
            used,
        })),
    ]
}

/// What one reply hands out must be within the sums, also when its request names a cell twice.
fn within_sums(reply: &Reply, shares_too: bool) -> Result<(), TestCaseError> {
    let (mut share, mut cap) = (0u64, Amount::ZERO);
    for cell in &reply.cells {
        let CellOutcome::Lease(terms) = &cell.outcome else { continue };
        prop_assert!(terms.tokens >= Amount::ZERO && terms.tokens <= terms.cap);
        share += u64::from(terms.share.ppb());
        cap += terms.cap;
    }
    prop_assert!(!shares_too || share <= u64::from(Share::ONE.ppb()), "shares of one reply: {share}");
    prop_assert!(cap <= Amount::tokens(BURST), "caps of one reply: {cap}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sums_hold_whatever_comes(
        recovers: bool,
        inputs in proptest::collection::vec((0u64..4_000_000, input()), 1..60),
    ) {
        let start = if recovers { Start::WithoutMemory } else { Start::First };
        let mut now = LedgerTime(1_000_000_000);
        let mut ledger = Ledger::new(start, EPOCH, now);
        let limit = CellConfig::constant("api", Rate::per_second(10), BURST, Span::from_secs(5));
        let version = Version { run: 1, n: 1 };
        let configure = Configure { version, settings: Settings::default(), cells: vec![limit] };
        prop_assert_eq!(ledger.apply(now, Input::Configure(configure)), Output::Configured);
        for (wait, input) in inputs {
            now = now + Span(wait);
            let output = ledger.apply(now, input);
            match output {
                Output::Reply(Ok(reply)) => within_sums(&reply, !recovers)?,
                Output::Reply(Err(error)) => prop_assert_ne!(error, RequestError::Busy),
                _ => {}
            }
            for cell in ledger.state().cells.values() {
                let (_, cap) = cell.outstanding(now);
                let share: u64 = cell.holders.values().map(|one| u64::from(one.counts(now).0.ppb())).sum();
                // A ledger without memory confirms what is claimed: that claims add up rests on who makes them.
                prop_assert!(recovers || share <= u64::from(Share::ONE.ppb()), "shares: {share}");
                prop_assert!(cap + cell.free <= Amount::tokens(BURST), "caps {cap} and free {}", cell.free);
            }
        }
    }
}
