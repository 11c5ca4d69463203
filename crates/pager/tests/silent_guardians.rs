//! A runner whose guardians all end as soon as they begin. This is the only test of its process, which becomes the runner.

use std::process::Command;

use octavo::Manager;
use octavo_pager::{End, Options, run};

/// Here a guardian is this test again, which takes `__guardian` for the name of a test, finds none, and ends.
#[test]
fn where_each_guardian_ends_at_once_the_tree_is_stopped_and_told() {
    let mut program = Command::new("dd");
    // It is large enough for a guardian, and far below the limit.
    program.args(["if=/dev/zero", "of=/dev/null", "bs=32M", "count=10000", "status=none"]);
    let make_manager = |budget_bytes| Manager::builder().budget_bytes(budget_bytes).build();
    let options = Options { limit_bytes: 256 << 20, socket: None, is_strict: false };
    let (end, _) = run(program, options, make_manager).unwrap();
    let End::Stopped(why) = end else { panic!("{end:?}") };
    let expected =
        "its guardian has ended, and no other could be started: 3 in a row have ended as soon as they began";
    assert_eq!(why, expected);
}
