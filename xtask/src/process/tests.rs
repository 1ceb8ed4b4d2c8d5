use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;

use super::*;

/// Long enough for a loaded machine; no test waits for it when all is well.
/// Set for [`interrupted_program`].
const INTERRUPTED: &str = "XTASK_TEST_INTERRUPTED";
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);

fn supervisor() -> (Supervisor, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Supervisor::new(folder.path().join("run")).unwrap(), folder)
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// The state of a process as the kernel shows it: `S` sleeps, `T` is stopped, nothing is gone.
fn kernel_state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn wait_for_state(pid: i32, wanted: impl Fn(Option<char>) -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !wanted(kernel_state(pid)) {
        assert!(std::time::Instant::now() < deadline, "process {pid} stays {:?}", kernel_state(pid));
        thread::yield_now();
    }
}

#[test]
fn a_ready_line_is_found_after_other_lines() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("echo starting; echo ready at 7; exec sleep 60")).unwrap();
    assert_eq!(process.wait_for_line("ready", LONG).unwrap(), "ready at 7");
    assert!(process.is_running());
}

#[test]
fn a_restart_does_not_take_the_ready_line_of_the_run_before() {
    let (supervisor, _folder) = supervisor();
    let first = supervisor.spawn("a", shell("echo ready first; exec sleep 60")).unwrap();
    first.wait_for_line("ready", LONG).unwrap();
    first.kill().unwrap();
    let second = supervisor.spawn("a", shell("echo ready second; exec sleep 60")).unwrap();
    assert_eq!(second.wait_for_line("ready", LONG).unwrap(), "ready second");
    assert_eq!(fs::read_to_string(second.stdout_path()).unwrap(), "ready first\nready second\n");
}

#[test]
fn a_process_that_ends_early_is_reported_with_its_status_and_its_last_words() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("echo no port given >&2; exit 3")).unwrap();
    let error = process.wait_for_line("ready", LONG).unwrap_err().to_string();
    for part in ["a ended", "exit status: 3", "\"ready\"", "no port given"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_process_that_never_gets_ready_is_reported_after_its_time() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("echo still loading; exec sleep 60")).unwrap();
    process.wait_for_line("still", LONG).unwrap();
    let error = process.wait_for_line("ready", SHORT).unwrap_err().to_string();
    assert!(error.contains("within 50ms") && error.contains("still loading"), "{error}");
}

#[test]
fn a_last_line_before_the_end_still_counts() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("echo done 1")).unwrap();
    process.wait(LONG).unwrap();
    assert_eq!(process.wait_for_line("done", LONG).unwrap(), "done 1");
}

#[test]
fn kill_takes_the_children_of_a_child_along() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("sleep 60 & echo child $!; wait")).unwrap();
    let line = process.wait_for_line("child ", LONG).unwrap();
    let grandchild = line["child ".len()..].parse::<i32>().unwrap();
    process.kill().unwrap();
    assert_eq!(process.exit_status().unwrap().signal(), Some(9));
    wait_for_state(grandchild, |state| matches!(state, None | Some('Z')));
}

#[test]
fn what_a_child_leaves_behind_when_it_ends_is_killed() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("sleep 60 & echo child $!")).unwrap();
    let line = process.wait_for_line("child ", LONG).unwrap();
    process.wait(LONG).unwrap();
    wait_for_state(line["child ".len()..].parse().unwrap(), |state| matches!(state, None | Some('Z')));
}

#[test]
fn a_paused_process_stands_still_and_runs_on() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("echo ready; exec sleep 60")).unwrap();
    process.wait_for_line("ready", LONG).unwrap();
    process.pause().unwrap();
    wait_for_state(process.pid(), |state| state == Some('T'));
    assert!(process.is_running());
    process.resume().unwrap();
    wait_for_state(process.pid(), |state| matches!(state, Some('S' | 'R')));
}

#[test]
fn terminate_lets_a_process_end_by_itself() {
    let (supervisor, _folder) = supervisor();
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let process = supervisor.spawn("a", shell(script)).unwrap();
    process.wait_for_line("ready", LONG).unwrap();
    assert!(process.terminate(LONG).unwrap().success());
    process.wait_for_line("bye", LONG).unwrap();
}

#[test]
fn terminate_reaches_a_paused_process() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("echo ready; exec sleep 60")).unwrap();
    process.wait_for_line("ready", LONG).unwrap();
    process.pause().unwrap();
    assert_eq!(process.terminate(LONG).unwrap().signal(), Some(15));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_and_reported() {
    let (supervisor, _folder) = supervisor();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let process = supervisor.spawn("a", shell(script)).unwrap();
    process.wait_for_line("ready", LONG).unwrap();
    let error = process.terminate(SHORT).unwrap_err().to_string();
    assert!(error.contains("was killed"), "{error}");
    assert!(!process.is_running());
}

#[test]
fn a_dropped_supervisor_leaves_nothing_running() {
    let (supervisor, _folder) = supervisor();
    let pids = ["a", "b", "c"].map(|name| {
        let process = supervisor.spawn(name, shell("echo ready; exec sleep 60")).unwrap();
        process.wait_for_line("ready", LONG).unwrap();
        process.pid()
    });
    drop(supervisor);
    for pid in pids {
        assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_err(), "{pid} is still there");
    }
}

#[test]
fn a_released_process_outlives_its_supervisor() {
    let (supervisor, _folder) = supervisor();
    supervisor.spawn("a", shell("echo ready; exec sleep 60")).unwrap();
    let released = supervisor.release();
    drop(supervisor);
    assert_eq!(released.len(), 1);
    assert!(released[0].is_running());
    released[0].kill().unwrap();
}

#[test]
fn no_signal_is_sent_after_the_end() {
    let (supervisor, _folder) = supervisor();
    let process = supervisor.spawn("a", shell("exit 0")).unwrap();
    process.wait(LONG).unwrap();
    process.kill().unwrap();
    process.pause().unwrap();
    assert!(process.terminate(SHORT).unwrap().success());
    assert!(supervisor.running().is_empty());
}

#[test]
fn a_name_that_would_leave_the_folder_is_refused() {
    let (supervisor, _folder) = supervisor();
    for name in ["", "../a", "a/b", ".hidden", "a b"] {
        assert!(supervisor.spawn(name, shell("exit 0")).is_err(), "{name:?}");
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let (supervisor, _folder) = supervisor();
    let error = supervisor.spawn("a", Command::new("/nowhere/tollgate")).unwrap_err().to_string();
    assert!(error.contains("can't start a") && error.contains("/nowhere/tollgate"), "{error}");
}

/// Ctrl-C ends a whole program, so the program is this test binary, told to run the other half below.
#[test]
fn an_interrupt_kills_the_children_and_ends_with_status_130() {
    let (supervisor, _folder) = supervisor();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--nocapture", "--exact", "process::tests::interrupted_program"]).env(INTERRUPTED, "1");
    let program = supervisor.spawn("program", command).unwrap();
    // The harness prints the name of the test without a line end before it.
    let line = program.wait_for_line("child ", LONG).unwrap();
    let child = line["child ".len()..].parse::<i32>().unwrap();
    assert_eq!(program.terminate(LONG).unwrap().code(), Some(EXIT_INTERRUPTED));
    assert!(test_kill_process(Pid::from_raw(child).unwrap()).is_err(), "{child} is still there");
}

/// The other half of the test above, which runs it as a program of its own; nothing otherwise.
#[test]
fn interrupted_program() {
    if std::env::var_os(INTERRUPTED).is_none() {
        return;
    }
    let (supervisor, _folder) = supervisor();
    supervisor.kill_on_interrupt().unwrap();
    let child = supervisor.spawn("child", shell("echo ready; exec sleep 60")).unwrap();
    child.wait_for_line("ready", LONG).unwrap();
    println!("\nchild {}", child.pid());
    child.wait(LONG).unwrap();
}
