//! Models of the state that no single lock guards: which cluster is a CPU's current cluster. Meanwhile other
//! threads pick and leave clusters, and take and free slots.
//!
//! Clusters have two slots here.

use super::*;
use crate::sync::percpu::run_on;
use crate::sync::{bounded, thread};

fn ask(may_grow: bool) -> SlotRequest<'static> {
    SlotRequest { may_grow, shunned: &[] }
}

/// Clusters with the given areas, and a flag for each slot. A thread that gets a slot must find its flag
/// clear.
struct Model {
    clusters: Clusters,
    owned: Vec<AtomicU32>,
}

impl Model {
    fn new(capacity: u32) -> Arc<Self> {
        let shape = AreaShape { capacity_pages: capacity, priority: 0 };
        let budget = Arc::new(Budget::new(u64::MAX));
        let clusters = Clusters::new(&[shape], budget, 0, Cpus::real()).unwrap();
        Arc::new(Self { clusters, owned: (0..capacity).map(|_| AtomicU32::new(0)).collect() })
    }

    fn allocate(&self, count: u32) -> Option<SlotRun> {
        let run = self.clusters.allocate(count, ask(true))?;
        for slot in run.first.0..run.first.0 + run.count {
            assert_eq!(self.owned[slot as usize].swap(1, Ordering::Relaxed), 0, "two owners of {slot}");
        }
        Some(run)
    }

    fn free(&self, run: SlotRun) {
        for slot in run.first.0..run.first.0 + run.count {
            self.owned[slot as usize].store(0, Ordering::Relaxed);
        }
        self.clusters.free_run(run);
    }

    fn end(&self) {
        self.clusters.validate();
        assert_eq!(self.clusters.used(), 0);
    }
}

/// A thread of a model: its CPU, and what it does.
type OnCpu = (u32, fn(&Model));

fn check(capacity: u32, threads: &'static [OnCpu]) {
    bounded(2, move || {
        let model = Model::new(capacity);
        let (last, others) = threads.split_last().expect("threads");
        let others: Vec<_> = others
            .iter()
            .map(|&(cpu, run)| {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    run_on(cpu);
                    run(&model);
                })
            })
            .collect();
        run_on(last.0);
        last.1(&model);
        others.into_iter().for_each(|other| other.join().unwrap());
        model.end();
    });
}

/// There is always room for all threads, whichever of them holds the clusters.
fn one_by_one<const SLOTS: usize>(model: &Model) {
    let runs = [(); SLOTS].map(|()| model.allocate(1).expect("there is room for all"));
    runs.into_iter().for_each(|run| model.free(run));
}

fn run_and_free(model: &Model) {
    let run = model.allocate(2).expect("there is room for all");
    model.free(run);
}

fn block_and_free(model: &Model) {
    if let Some(first) = model.clusters.allocate_huge(ask(true)) {
        let run = SlotRun { first, count: CLUSTER_SLOTS as u32 };
        for slot in [first.0, first.0 + 1] {
            assert_eq!(model.owned[slot as usize].swap(1, Ordering::Relaxed), 0, "two owners of {slot}");
        }
        model.free(SlotRun { count: 1, ..run });
        model.free(SlotRun { first: SwapSlot(first.0 + 1), count: 1 });
    }
}

#[test]
fn loom_two_cpus_share_the_clusters_there_are() {
    check(4, &[(0, one_by_one::<2>), (1, one_by_one::<2>)]);
}

#[test]
fn loom_two_cpus_share_one_cluster() {
    check(2, &[(0, one_by_one::<1>), (1, one_by_one::<1>)]);
}

#[test]
fn loom_two_threads_of_one_cpu_share_its_cluster() {
    check(4, &[(0, one_by_one::<2>), (0, run_and_free)]);
}

#[test]
fn loom_a_threads_cluster_is_left_by_another_thread_of_its_cpu() {
    check(6, &[(0, one_by_one::<1>), (0, one_by_one::<3>)]);
}

#[test]
fn loom_a_block_against_runs() {
    check(4, &[(0, run_and_free), (1, block_and_free)]);
}
