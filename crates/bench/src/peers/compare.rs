//! One group of sides measured in alternation.

use octavo_measure::rounds::turns;
use octavo_measure::workers::Plan;

/// The thread counts that are measured: one thread alone, and one beside another.
pub const THREADS: [usize; 2] = [1, 2];

/// A side of a comparison, or the reason why it is absent.
pub struct Side<S: ?Sized> {
    /// The side's name in the tables.
    pub name: &'static str,
    /// The version that was linked or loaded, if it is known.
    pub version: Option<String>,
    /// The side of Octavo that this one is compared with.
    pub against: Option<&'static str>,
    /// The side to measure, or the reason why it is missing and what to install.
    pub subject: Result<Box<S>, String>,
}

/// One side's nanoseconds for an operation, one figure a round. Empty if the side could not be measured.
#[derive(Clone, Debug, Default)]
pub struct SideRow {
    /// The side's name.
    pub side: &'static str,
    /// The name of the row that it is compared with.
    pub against: Option<&'static str>,
    /// The figures by one and by two threads (as in [`THREADS`]).
    pub ns: [Vec<f64>; THREADS.len()],
}

/// The sides of one table.
#[derive(Clone, Debug)]
pub struct SideGroup {
    /// Key and value pairs that tell the group from others.
    pub title: Vec<(&'static str, String)>,
    /// A row for each present side.
    pub rows: Vec<SideRow>,
}

/// Measures every present side `rounds` times, in alternation. Each round begins one side further on.
///
/// A side that fails once is left out from then on: its memory may be gone.
pub fn alternate<S: ?Sized>(
    title: Vec<(&'static str, String)>,
    sides: &[Side<S>],
    rounds: u32,
    plan: Plan,
    measure: impl Fn(&S, usize, Plan) -> Option<f64>,
) -> SideGroup {
    let present: Vec<(&Side<S>, &S)> =
        sides.iter().filter_map(|side| Some((side, &**side.subject.as_ref().ok()?))).collect();
    let mut rows: Vec<SideRow> = present
        .iter()
        .map(|(side, _)| SideRow { side: side.name, against: side.against, ns: Default::default() })
        .collect();
    let mut failed = vec![false; rows.len()];
    for (_, which) in turns(rounds as usize, present.len()) {
        for (slot, &threads) in THREADS.iter().enumerate() {
            if failed[which] {
                continue;
            }
            match measure(present[which].1, threads, plan) {
                Some(ns) => rows[which].ns[slot].push(ns),
                None => failed[which] = true,
            }
        }
    }
    for (row, failed) in rows.iter_mut().zip(failed) {
        if failed {
            row.ns = Default::default();
        }
    }
    SideGroup { title, rows }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn side(name: &'static str, subject: Result<Box<str>, String>) -> Side<str> {
        Side { name, version: None, against: None, subject }
    }

    #[test]
    fn sides_take_turns_and_each_round_begins_one_further() {
        let order = RefCell::new(String::new());
        let sides =
            [side("a", Ok("a".into())), side("gone", Err("missing".into())), side("b", Ok("b".into()))];
        let group = alternate(vec![], &sides, 2, Plan::of_millis(1), |name, threads, _| {
            order.borrow_mut().push_str(&format!("{name}{threads} "));
            Some(threads as f64)
        });
        assert_eq!(*order.borrow(), "a1 a2 b1 b2 b1 b2 a1 a2 ");
        assert_eq!(group.rows.len(), 2);
        assert_eq!(group.rows[1].ns, [vec![1.0, 1.0], vec![2.0, 2.0]]);
    }

    #[test]
    fn a_side_that_fails_has_no_figures() {
        let sides = [side("a", Ok("a".into()))];
        let group =
            alternate(vec![], &sides, 3, Plan::of_millis(1), |_, threads, _| (threads == 1).then_some(1.0));
        assert!(group.rows[0].ns.iter().all(Vec::is_empty));
    }
}
