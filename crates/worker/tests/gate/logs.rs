//! What the log says at which level: an operator acts on a warning.

use crate::world::{limit, pass};
use std::io::Write;
use std::sync::{Arc, Mutex};
use tollgate_worker::testing::{Fault, TestGroup};
use tracing_subscriber::fmt::MakeWriter;

/// Warnings and errors of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let lines = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(self.clone());
        tracing::subscriber::set_default(lines.finish())
    }

    /// What came since the last call.
    fn news(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn what_mends_itself_is_no_warning_and_what_lasts_is_one() {
    let log = Log::default();
    let _listening = log.listen();
    let group = TestGroup::new([limit("api", 50, 16)]);
    let gate = group.gate().await;
    pass(2_000).await;
    // A coordinator that continues as new, or moves to another host.
    group.fail(Fault::Unreachable);
    pass(2_000).await;
    group.heal();
    pass(5_000).await;
    // A limit that is removed and made anew.
    group.remove("api");
    pass(3_000).await;
    group.set(limit("api", 50, 16));
    pass(5_000).await;
    assert_eq!(log.news(), Vec::<String>::new());

    group.fail(Fault::Unreachable);
    pass(7_000).await;
    let news = log.news();
    assert!(news.len() == 1 && news[0].starts_with("WARN the coordinator does not answer"), "{news:?}");
    pass(8_000).await;
    let news = log.news();
    assert!(news.len() == 1 && news[0].starts_with("WARN closed: the lease has ended"), "{news:?}");
    group.heal();
    pass(10_000).await;
    assert_eq!(log.news(), Vec::<String>::new());

    group.remove("api");
    pass(30_000).await;
    let news = log.news();
    assert!(news.len() == 1 && news[0].starts_with("ERROR no such limit in this group"), "{news:?}");
    drop(gate);
}

#[tokio::test(start_paused = true)]
async fn going_on_without_the_coordinator_is_told_of_once_at_the_beginning_and_the_end() {
    let log = Log::default();
    let _listening = log.listen();
    let group =
        TestGroup::new([limit("api", 50, 16).hold_when_lost(50), limit("mail", 50, 16).open_when_lost()]);
    let gate = group.gate().await;
    // So that there is a share to hold.
    for _ in 0..200 {
        drop(gate.acquire("api").await.unwrap());
    }
    group.fail(Fault::Unreachable);
    pass(60_000).await;
    let news = log.news();
    let begins = ["WARN the coordinator does not answer", "WARN held: ", "WARN opened: "];
    assert_eq!(news.len(), 3, "{news:?}");
    for begin in begins {
        assert!(news.iter().any(|line| line.starts_with(begin)), "{begin}: {news:?}");
    }
    group.heal();
    pass(20_000).await;
    let news = log.news();
    let over = "WARN goes on without the coordinator no more";
    assert!(news.len() == 2 && news.iter().all(|line| line.starts_with(over)), "{news:?}");

    group.set(limit("api", 50, 16).paused());
    pass(5_000).await;
    let news = log.news();
    assert!(news.len() == 1 && news[0].starts_with("WARN paused by an operator"), "{news:?}");
}
