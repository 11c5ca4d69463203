//! A small store on files recovers from what crashes leave: each sector that was written since the last sync
//! is kept, lost or torn, in any order.
//!
//! The store appends records to a log, and makes them durable by a sync. Then it notes their number in a
//! second file. So after a crash, the log has at least the records that were promised, and at least as many
//! as the number says.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::device::CrashDisk;
use common::{MIB, PAGE, Random, number_from, seed_or};
use octavo::file::{File, FileOptions};
use octavo::{Advice, Manager, RegionOptions};

/// The length of a record's bytes, and their check sum.
const HEAD: usize = 16;

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).background(false).build().unwrap()
}

fn open(manager: &Manager, disk: &CrashDisk, name: &str) -> File {
    manager.open_backing(name, disk.backing(name), FileOptions::new().write(true)).unwrap()
}

fn check_sum(number: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325 ^ number, step)
}

/// The bytes of a record.
fn record(number: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..len).map(|_| random.next() as u8).collect()
}

struct Store {
    log: File,
    count: File,
    /// Where the log ends.
    end: u64,
    records: u64,
}

impl Store {
    /// Opens a store, and finds the records that a crash has left.
    fn recover(manager: &Manager, disk: &CrashDisk) -> Self {
        let mut store =
            Self { log: open(manager, disk, "log"), count: open(manager, disk, "count"), end: 0, records: 0 };
        while let Some(len) = store.next_record() {
            (store.end, store.records) = (store.end + (HEAD + len) as u64, store.records + 1);
        }
        store
    }

    /// Returns the length of the record at the end, if there is a whole one. Checks its bytes.
    fn next_record(&self) -> Option<usize> {
        let mut head = [0; HEAD];
        if self.log.read_at(self.end, &mut head).unwrap() < HEAD {
            return None;
        }
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let (len, sum) = (word(0) as usize, word(8));
        if len == 0 || len > MIB as usize {
            return None;
        }
        let mut bytes = vec![0; len];
        let read = self.log.read_at(self.end + HEAD as u64, &mut bytes).unwrap();
        (read == len && check_sum(self.records, &bytes) == sum).then(|| {
            assert!(bytes == record(self.records, len), "record {} has other bytes", self.records);
            len
        })
    }

    fn append(&mut self, len: usize) {
        let bytes = record(self.records, len);
        let mut all = (len as u64).to_le_bytes().to_vec();
        all.extend(check_sum(self.records, &bytes).to_le_bytes());
        all.extend(&bytes);
        self.log.write_at(self.end, &all).unwrap();
        (self.end, self.records) = (self.end + all.len() as u64, self.records + 1);
    }

    /// The number of records that the second file says.
    fn noted(&self) -> u64 {
        let mut word = [0; 8];
        self.count.read_at(0, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    fn commit(&self, syncs: bool) {
        if syncs {
            self.log.sync().unwrap();
        }
        // A word lies in one sector, so it is not torn.
        self.count.write_at(0, &self.records.to_le_bytes()).unwrap();
        self.count.sync().unwrap();
    }
}

/// Fills a store, and checks `most` crashes at each moment.
fn run(seed: u64, (commits, longest, most): (u64, u64, usize), syncs: bool) {
    let (mut random, manager, disk) = (Random::new(seed), manager(), CrashDisk::new());
    let mut store = Store::recover(&manager, &disk);
    let space = manager.space().unwrap();
    let mut promised = Vec::new();
    for _ in 0..commits {
        for _ in 0..1 + random.below(3) {
            store.append(1 + random.below(longest) as usize);
        }
        // Pages go out before they are synced, in any order.
        if random.one_in(2) {
            let len = store.end.next_multiple_of(PAGE);
            let map =
                || space.map_file(&store.log, 0, len, octavo::file::Sharing::Shared, RegionOptions::new());
            let at = map().unwrap();
            space.populate(at, len, octavo::Access::Read).unwrap();
            space.advise(at + PAGE * random.below(len / PAGE), PAGE, Advice::PageOut).unwrap();
            space.unmap(at, len).unwrap();
        }
        store.commit(syncs);
        promised.push((disk.events(), store.records));
    }
    drop(store);
    for moment in disk.moments() {
        let kept = promised.iter().rfind(|(events, _)| *events <= moment).map_or(0, |(_, records)| *records);
        for crashed in disk.crashes(moment, most, &mut random) {
            let mut found = Store::recover(&manager, &crashed);
            assert!(found.records >= kept, "{} of {kept} promised records are left", found.records);
            assert!(found.records >= found.noted(), "{} of {} records", found.records, found.noted());
            // The store goes on from there, whatever lies behind.
            found.append(100);
            found.commit(true);
            let after = Store::recover(&manager, &crashed);
            assert_eq!(after.noted(), found.records);
            assert!(after.records >= found.records);
        }
    }
}

/// `OCTAVO_TEST_SEED` and `OCTAVO_TEST_RUNS` choose other seeds.
#[test]
fn a_store_recovers_from_crashes_in_a_hundred_runs() {
    let first = seed_or(1);
    for seed in first..first + number_from("OCTAVO_TEST_RUNS").unwrap_or(100) {
        println!("seed {seed}");
        run(seed, (4, 6000, 5), true);
    }
}

#[test]
fn a_small_store_recovers_from_every_crash() {
    (0..4).for_each(|seed| run(seed, (3, 200, 5000), true));
}

#[test]
fn a_store_that_does_not_sync_its_log_loses_records() {
    let loses = |seed| catch_unwind(AssertUnwindSafe(|| run(seed, (4, 3000, 20), false))).is_err();
    assert!((0..10).any(loses), "no crash lost a record");
}
