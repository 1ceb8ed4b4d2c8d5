use super::*;

const PASS: Step = Step { name: "pass", purpose: "", run: |_| Ok(()) };
const FAIL: Step = Step { name: "fail", purpose: "", run: |_| bail!("broken") };

fn last_line(steps: &[&Step], keep_going: bool) -> String {
    let workspace = Workspace::at("/nowhere");
    let outcomes = run_steps(steps, &Session::new(&workspace), keep_going);
    summary(steps, &outcomes).lines().last().unwrap().to_owned()
}

#[test]
fn the_last_line_counts_what_passed_and_failed() {
    assert_eq!(last_line(&[&PASS, &PASS], false), "steps: 2 passed, 0 failed");
}

#[test]
fn a_failed_step_ends_the_run_unless_told_to_go_on() {
    assert_eq!(last_line(&[&PASS, &FAIL, &PASS], false), "steps: 1 passed, 1 failed");
    assert_eq!(last_line(&[&PASS, &FAIL, &PASS], true), "steps: 2 passed, 1 failed");
}

#[test]
fn a_step_that_was_not_reached_is_shown_as_not_run() {
    let steps = [&FAIL, &PASS];
    let workspace = Workspace::at("/nowhere");
    let outcomes = run_steps(&steps, &Session::new(&workspace), false);
    let text = summary(&steps, &outcomes);
    assert!(text.contains("pass       not run"), "{text}");
}

#[test]
fn an_unknown_step_is_refused_with_the_known_ones() {
    let options = TestOptions { only: vec!["tests".to_owned()], ..TestOptions::default() };
    let Err(error) = chosen(&options) else { panic!("there is no step `tests`") };
    assert!(error.to_string().contains("--only tests: no such step; there are fmt, clippy"), "{error}");
}

#[test]
fn a_chosen_step_keeps_the_order_of_the_list() {
    let only = vec!["test".to_owned(), "fmt".to_owned()];
    let steps = chosen(&TestOptions { only, ..TestOptions::default() }).unwrap();
    assert_eq!(steps.iter().map(|step| step.name).collect::<Vec<_>>(), ["fmt", "test"]);
}

#[test]
fn a_command_that_fails_is_an_error_with_the_command_its_status_and_advice() {
    let mut command = Command::new("sh");
    command.args(["-c", "exit 7"]);
    let error = succeed(command, "do this").unwrap_err().to_string();
    for part in ["exit 7", "exit status: 7", "do this"] {
        assert!(error.contains(part), "{error}");
    }
}
