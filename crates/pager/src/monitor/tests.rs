use super::*;
use crate::managed::tests::{Commons, wait_until};

fn monitor(commons: &Commons) -> Monitor {
    let unused = Box::new(|| Err("nobody asks for a manager".into()));
    Monitor::new(Arc::clone(&commons.ledger), unused).unwrap()
}

#[test]
fn a_driver_that_is_busy_is_not_waited_for_when_its_process_has_ended() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let (parent, kernel) = commons.managed(Some(7), 1);
    parent.hold_driver(|parent| {
        kernel.fork();
        monitor.let_go(7, parent);
        monitor.take_last_forks();
        assert!(monitor.has_managed(), "a fork of it comes still");
        assert_eq!((monitor.ending.len(), monitor.forks.len()), (1, 0));
    });
    wait_until(|| {
        monitor.take_last_forks();
        monitor.ending.is_empty()
    });
    assert_eq!(monitor.forks.iter().map(|(parent, _)| *parent).collect::<Vec<_>>(), [7]);
    assert_eq!(commons.guardian.pids(), [0], "the child");
}
