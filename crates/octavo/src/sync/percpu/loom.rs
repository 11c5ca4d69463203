//! Models of the per-CPU stacks. Fast paths of both forms meet drains from another CPU.

use super::{PerCpuStacks, Pop, Push, StackForm, run_on};
use crate::sync::{Arc, Cpus, thread};

const CLASS: usize = 0;

/// Makes the stacks of two CPUs. The stack of CPU 0 holds the value 1 and has room for two values.
fn stacks(form: StackForm) -> Arc<PerCpuStacks> {
    let stacks = PerCpuStacks::new(Cpus::real(), &[2], form).unwrap();
    let held = stacks.exclusive(0).unwrap();
    held.set_limit(CLASS, 2);
    assert!(held.insert(CLASS, 1));
    drop(held);
    Arc::new(stacks)
}

fn drain(stacks: &PerCpuStacks) -> Vec<u32> {
    let held = stacks.exclusive(0).unwrap();
    std::iter::from_fn(|| held.remove(CLASS)).collect()
}

/// A thread on CPU 0 pops 1 and pushes 2, while a thread on CPU 1 drains CPU 0.
fn owner_against_remote_drain(form: StackForm) {
    ::loom::model(move || {
        let stacks = stacks(form);
        let remote = {
            let stacks = stacks.clone();
            thread::spawn(move || {
                run_on(1);
                drain(&stacks)
            })
        };
        let mut seen = Vec::new();
        if let Pop::Value(value) = stacks.pop(CLASS) {
            seen.push(value);
        }
        if stacks.push(CLASS, 2) != Push::Done {
            seen.push(2);
        }
        seen.extend(remote.join().unwrap());
        seen.extend(drain(&stacks));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2], "each value is in one place");
        let (pops, pushes) = stacks.pops_and_pushes(CLASS).unwrap();
        assert!(pops <= 2 && pushes <= 1);
    });
}

#[test]
fn loom_sections_against_a_remote_drain() {
    owner_against_remote_drain(StackForm::Sections);
}

#[test]
fn loom_trylock_against_a_remote_drain() {
    owner_against_remote_drain(StackForm::TryLock);
}

/// Two threads are on one CPU. One thread holds the CPU for a refill. The other thread succeeds on the fast
/// path, or gets `Busy`.
#[test]
fn loom_a_holder_of_its_own_cpu_excludes_its_sections() {
    ::loom::model(|| {
        let stacks = stacks(StackForm::Sections);
        let refiller = {
            let stacks = stacks.clone();
            thread::spawn(move || {
                let Some(held) = stacks.exclusive_here() else { return vec![3] };
                let cold = held.remove(CLASS);
                assert!(held.insert(CLASS, 3));
                cold.into_iter().collect()
            })
        };
        let mut seen = Vec::new();
        if let Pop::Value(value) = stacks.pop(CLASS) {
            seen.push(value);
        }
        seen.extend(refiller.join().unwrap());
        seen.extend(drain(&stacks));
        seen.sort_unstable();
        assert_eq!(seen, [1, 3], "each value is in one place");
    });
}

/// If two threads on another CPU drain the stacks at once, each value goes to exactly one of them.
#[test]
fn loom_two_remote_drains_share_the_values() {
    ::loom::model(|| {
        let stacks = stacks(StackForm::Sections);
        let other = {
            let stacks = stacks.clone();
            thread::spawn(move || drain(&stacks))
        };
        let mut seen = drain(&stacks);
        seen.extend(other.join().unwrap());
        assert_eq!(seen, [1]);
    });
}
