//! A file whose pages go out, come back and are synced, while its end moves.
//!
//! ```text
//!  page 0     page 1     page 2         page 3, and 4 now and then
//! +----------+----------+----------+---------------------┄┄┄┄
//! | a word of each writer in each  | the tail's thread    ┆ end
//! +--------------------------------+---------------------┄┄┄┄
//! ```
//!
//! Writers store to words of their own, in every way, and find what they stored. After a sync, the device has
//! it for good. One thread has the file's end: it makes the file longer and shorter, and finds its bytes, or
//! zeros. Meanwhile, pages are asked to go out, others sync, and a mapping comes and goes. In half of the
//! runs, a gate holds pages back.

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::{Random, thread};

use super::super::octavo::file::{File, FileOptions, Sharing, WriteGate};
use super::super::octavo::{
    Access, Advice, Compression, ErrorKind, HugePolicy, MIN_BUDGET_BYTES, Manager, RegionOptions, Result,
    Space,
};
use super::device::{Manners, SlowFile};
use super::{PAGE, assert_nothing_is_left, named};

/// Pages that have words of the writers.
const PAGES: u64 = 3;
const WRITERS: u64 = 2;
/// Where the file's tail begins.
const TAIL: u64 = PAGES * PAGE;
/// The most bytes of the tail.
const MOST_TAIL: u64 = 2 * PAGE;
const AT: u64 = 1 << 20;
const ALL: (u64, u64) = (0, u64::MAX);

/// Holds back one in so many pages that are asked about. A sync opens it for the next one.
struct Gate {
    one_in: u64,
    asked: AtomicU64,
    is_open: AtomicU64,
}

impl WriteGate for Gate {
    fn may_write(&self, _offset: u64, _page: &[u8]) -> bool {
        !(self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.one_in)
            || self.is_open.swap(0, Ordering::Relaxed) != 0
    }

    fn make_writable(&self, _offset: u64, _page: &[u8]) {
        self.is_open.store(1, Ordering::Relaxed);
    }
}

/// The device of a run may fail.
fn insist<T>(operation: impl FnMut() -> Result<T>) -> T {
    super::insist(true, operation)
}

struct Shared {
    manager: Manager,
    file: File,
    backing: SlowFile,
    space: Space,
    left: AtomicU64,
    fails: bool,
}

impl Shared {
    /// Syncs a part of the file, and returns words that the device has then for good.
    ///
    /// Returns `None` if the device may fail. A write by another thread may just have failed then, and left
    /// anything there.
    fn sync<const WORDS: usize>(&self, (offset, len): (u64, u64), at: [u64; WORDS]) -> Option<[u64; WORDS]> {
        insist(|| self.file.sync_range(offset, len));
        (!self.fails).then(|| at.map(|at| self.backing.durable_word(at)))
    }
}

fn word_of(writer: u64, page: u64) -> u64 {
    page * PAGE + 8 * (1 + writer) + 1024 * page
}

/// Stores to the writer's words, and checks them, in memory and after syncs.
fn write(shared: &Shared, writer: u64, mut random: Random) {
    let mut values = [0_u64; PAGES as usize];
    for _ in 0..30 {
        thread::sleep(Duration::from_nanos(random.below(8000)));
        let page = random.below(PAGES);
        let (at, value) = (word_of(writer, page), values[page as usize] + 1);
        match random.below(8) {
            0..=3 => insist(|| shared.space.store(AT + at, value)),
            4 => insist(|| shared.file.write_at(at, &value.to_ne_bytes())),
            5 => {
                let pin = insist(|| shared.space.pin_exact(AT + at, 8, Access::Write));
                thread::yield_now();
                pin.store(0, value).expect("a word of the pin");
            }
            _ => {
                let durable = shared.sync([(page * PAGE, PAGE), ALL][random.below(2) as usize], [at]);
                assert_eq!(
                    durable.unwrap_or([value - 1]),
                    [value - 1],
                    "writer {writer}, page {page}: on the device after a sync"
                );
                continue;
            }
        }
        values[page as usize] = value;
        let found = match random.below(2) {
            0 => insist(|| shared.space.load::<u64>(AT + at)),
            _ => {
                let mut word = [0; 8];
                assert_eq!(insist(|| shared.file.read_at(at, &mut word)), 8);
                u64::from_ne_bytes(word)
            }
        };
        assert_eq!(found, value, "writer {writer}, page {page}");
    }
    let durable = shared.sync(ALL, [0, 1, 2].map(|page| word_of(writer, page)));
    assert_eq!(durable.unwrap_or(values), values, "writer {writer}: on the device after the last sync");
}

/// Moves the end of the file, and checks the bytes in front of it.
fn move_end(shared: &Shared, mut random: Random) {
    let mut tail: Vec<u8> = Vec::new();
    for _ in 0..30 {
        thread::sleep(Duration::from_nanos(random.below(8000)));
        let len = match random.below(4) {
            0 => random.below(MOST_TAIL),
            _ => random.below(200),
        };
        match random.below(6) {
            0..=1 => {
                let from = (tail.len() as u64).min(MOST_TAIL - 200);
                let bytes: Vec<u8> = (0..1 + len % 200).map(|_| random.below(256) as u8 | 1).collect();
                insist(|| shared.file.write_at(TAIL + from, &bytes));
                let (from, end) = (from as usize, from as usize + bytes.len());
                tail.resize(tail.len().max(end), 0);
                tail[from..end].copy_from_slice(&bytes);
            }
            2 => {
                insist(|| shared.file.set_len_bytes(TAIL + len));
                tail.resize(len as usize, 0);
            }
            3 if !tail.is_empty() => {
                let at = random.below(tail.len() as u64);
                let end = tail.len().min((at + len) as usize).max(at as usize);
                insist(|| shared.file.punch_hole(TAIL + at, len));
                tail[at as usize..end].fill(0);
            }
            4 => match shared.space.load::<u8>(AT + TAIL + MOST_TAIL - 1) {
                Ok(byte) => {
                    assert!(tail.len() as u64 > MOST_TAIL - PAGE && byte == 0, "a byte behind the end")
                }
                Err(error) if error.kind() == ErrorKind::BeyondEnd => {
                    assert!(tail.len() as u64 <= MOST_TAIL - PAGE, "{error}");
                }
                Err(error) => assert!(super::is_passing(&error, true), "unexpected: {error}"),
            },
            _ => {}
        }
        if !tail.is_empty() {
            let mut shown = vec![0xAA; tail.len()];
            insist(|| shared.space.read(AT + TAIL, &mut shown));
            let wrong = (0..tail.len()).find(|at| shown[*at] != tail[*at]);
            let what = wrong.map(|at| (shown[at], tail[at]));
            assert_eq!(wrong, None, "of {} bytes in a mapping: {what:?}", tail.len());
        }
        let mut found = vec![0xAA; MOST_TAIL as usize];
        let read = insist(|| shared.file.read_at(TAIL, &mut found));
        assert_eq!(read, tail.len(), "bytes of the tail");
        let wrong = (0..read).find(|at| found[*at] != tail[*at]);
        assert_eq!(wrong, None, "of {read} bytes: {:?}", wrong.map(|at| (found[at], tail[at])));
    }
}

/// Asks pages to go out, and maps a part of the file now and then.
fn disturb(shared: &Shared, mut random: Random) {
    let mut other = None;
    for _ in 0..400 {
        match random.below(10) {
            0 => drop(shared.manager.reclaim(2).expect("reclaim gives no error of a device")),
            1 => drop(shared.sync(ALL, [])),
            2 => {
                let space = insist(|| shared.manager.space());
                let sharing = [Sharing::Shared, Sharing::Private][random.below(2) as usize];
                let options = RegionOptions::new();
                let at = insist(|| space.map_file(&shared.file, 0, TAIL + PAGE, sharing, options));
                if sharing == Sharing::Private {
                    insist(|| space.store(at, 77_u64));
                }
                other = Some((space, at));
            }
            3 => match shared.space.load::<u8>(AT + TAIL + random.below(MOST_TAIL)) {
                Err(error) if error.kind() == ErrorKind::BeyondEnd => {}
                Err(error) => assert!(super::is_passing(&error, true), "unexpected: {error}"),
                Ok(_) => {}
            },
            4 => {
                if let Some((space, at)) = &other {
                    // Nobody stores to the first word of the file, and a private store stays private.
                    let found = insist(|| space.load::<u64>(*at));
                    assert!(found == 0 || found == 77, "{found}");
                }
            }
            _ => shared.space.advise(AT, TAIL + MOST_TAIL, Advice::PageOut).expect("advice"),
        }
        if shared.left.load(Ordering::Acquire) == 0 {
            break;
        }
        thread::yield_now();
    }
    assert_eq!(insist(|| shared.space.load::<u64>(AT)), 0, "nobody stores there");
}

pub(crate) fn run(seed: u64) {
    let mut random = Random::new(seed);
    let manners = Manners::for_few_pages(&mut random);
    let (backing, serving) = SlowFile::new(manners, seed);
    let builder = Manager::builder().budget_bytes(MIN_BUDGET_BYTES).huge(HugePolicy::Never).background(false);
    let manager = builder.compression(Compression::Off).build().expect("a manager");
    let options = FileOptions::new().write(true);
    let file = manager.open_backing("a file", Box::new(backing.clone()), options).expect("a file");
    insist(|| file.set_len_bytes(TAIL));
    if random.below(2) == 0 {
        let gate = Gate { one_in: 2 + random.below(4), asked: AtomicU64::new(0), is_open: AtomicU64::new(0) };
        file.set_write_gate(Some(Arc::new(gate))).expect("a file that may be written");
    }
    let space = manager.space().expect("a space");
    let map = || space.map_file_at(AT, &file, 0, TAIL + MOST_TAIL, Sharing::Shared, RegionOptions::new());
    insist(map);
    let left = AtomicU64::new(WRITERS + 1);
    let fails = manners.failed > 0;
    let shared = Arc::new(Shared { manager, file, backing, space, left, fails });
    let mut threads = Vec::new();
    for writer in 0..=WRITERS {
        let (shared, random) = (Arc::clone(&shared), Random::new(seed ^ (writer + 1) << 32));
        threads.push(named(&format!("writer {writer}"), move || {
            if writer == WRITERS {
                move_end(&shared, random)
            } else {
                write(&shared, writer, random)
            }
            shared.left.fetch_sub(1, Ordering::AcqRel);
        }));
    }
    let disturbing = Arc::clone(&shared);
    threads.push(named("disturber", move || disturb(&disturbing, random)));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    shared.backing.heal();
    shared.manager.validate();
    let Ok(Shared { manager, file, backing, space, .. }) = Arc::try_unwrap(shared) else {
        panic!("all threads have ended");
    };
    insist(|| file.sync());
    // A page that was pinned during the sync is dirty still.
    insist(|| file.sync());
    assert_eq!(file.dirty_bytes(), 0, "nobody uses the file");
    drop((file, space));
    assert_nothing_is_left(&manager);
    drop(manager);
    backing.end();
    serving.join().expect("no panic");
}
