//! A file driven by one thread beside the model of its bytes. After each step, both agree.
//!
//! Half of the runs use a real file, which is compared after each sync. The others use a disk that crashes:
//! each sector that a crash may leave is one that the file has had since the last sync.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use octavo::file::{File, FileOptions, Sharing};
use octavo::{
    Access, Advice, DirtyPages, Error, ErrorKind, FrameId, Manager, Order, Pin, RegionOptions, Result, Space,
};

use crate::common::device::{CrashDisk, Raw, SECTOR, Sector, sector_of};
use crate::common::{MIB, PAGE, Random, Switches, assert_only_kept};

/// A case to run.
#[derive(Clone, Debug)]
pub struct Case {
    pub switches: Switches,
    pub background: bool,
    /// Over the disk that crashes, in place of a real file.
    pub crashes: bool,
    /// A real file goes past the kernel's page cache.
    pub direct: bool,
    /// The file's pages are lent by guards, and reached in no other way.
    pub guards: bool,
    /// A sync finds what to write by a walk over all pages.
    pub walks: bool,
    /// Programs store behind the end now and then. Nobody may ever see that in the file.
    pub stores_behind_end: bool,
    /// Frames for the file, which blocks allocated beside it leave free.
    pub room_frames: u64,
    pub ops: Vec<Raw>,
}

impl Case {
    pub fn random(random: &mut Random, steps: u64) -> Self {
        let ops = random.ops(steps);
        Self {
            switches: Switches::random(random),
            background: random.one_in(2),
            crashes: random.one_in(2),
            direct: random.one_in(2),
            guards: random.one_in(4),
            walks: random.one_in(3),
            stores_behind_end: random.one_in(2),
            room_frames: 64 + random.below(500),
            ops,
        }
    }
}

const PAGE_LEN: usize = PAGE as usize;
/// The longest file. So few pages may be dirty that no thread is paused.
const MOST_BYTES: u64 = 400 * PAGE;
const MOST_MAPS: usize = 5;
const MOST_PINS: usize = 4;
const NAME: &str = "data";

/// What the file's bytes are, and what they have been since the last sync.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    /// The bytes at the last sync, or what a sync of a part has made durable since.
    settled: Vec<u8>,
    /// Other contents of sectors since then.
    since: HashMap<usize, Vec<Sector>>,
    /// The lengths since then.
    lengths: Vec<usize>,
    /// The lengths since the last sync of all.
    cuts: Vec<usize>,
}

/// The page of a private region that was written.
struct OwnPage {
    bytes: Vec<u8>,
    /// What lay behind the end of the file is not known.
    known: usize,
}

struct Map {
    space: usize,
    address: u64,
    /// The page of the file that its first page shows.
    first: u64,
    pages: u64,
    guarded: bool,
    /// For a private region, the pages that were written, by their place in it.
    own: Option<BTreeMap<u64, OwnPage>>,
}

struct HeldPin<'s> {
    pin: Pin<'s>,
    /// The page of the file.
    page: u64,
    /// The file still has the page in this memory.
    is_alive: bool,
}

struct Run<'s> {
    manager: &'s Manager,
    spaces: &'s [Space],
    path: &'s Path,
    case: &'s Case,
    disk: CrashDisk,
    file: Option<File>,
    model: Model,
    maps: Vec<Map>,
    pins: Vec<HeldPin<'s>>,
    ballast: Vec<(FrameId, Order)>,
    stamp: u64,
}

/// Runs a case. Panics if file and model disagree.
pub fn run(case: &Case) {
    let folder = tempfile::tempdir_in("/var/tmp").expect("room in /var/tmp");
    let search = if case.walks { DirtyPages::Walk } else { DirtyPages::Tags };
    let builder =
        case.switches.builder().dirty_pages(search).budget_bytes(16 * MIB).background(case.background);
    let manager = builder.build().unwrap();
    let spaces = [manager.space().unwrap(), manager.space().unwrap()];
    let mut run = Run {
        manager: &manager,
        spaces: &spaces,
        path: &folder.path().join(NAME),
        case,
        disk: CrashDisk::new(),
        file: None,
        model: Model { lengths: vec![0], ..Model::default() },
        maps: Vec::new(),
        pins: Vec::new(),
        ballast: Vec::new(),
        stamp: 1,
    };
    run.open();
    run.take_ballast();
    for raw in &case.ops {
        run.step(*raw);
    }
    run.check_everything();
    manager.validate();
    run.close();
    run.drop_ballast();
    drop(run);
    drop(spaces);
    assert_only_kept(&manager, case.switches.keeps_huge_zero(), case.switches.encrypt);
    manager.shutdown().map_err(|refused| refused.error().to_string()).unwrap();
}

impl Model {
    fn pages(&self) -> u64 {
        (self.bytes.len() as u64).div_ceil(PAGE)
    }

    /// A page, with zeros behind the end.
    fn page(&self, page: u64) -> Vec<u8> {
        let mut bytes = self.bytes.get((page * PAGE) as usize..).unwrap_or_default().to_vec();
        bytes.resize(PAGE_LEN, 0);
        bytes
    }

    fn note(&mut self, at: usize, len: usize) {
        for sector in at / SECTOR..(at + len).div_ceil(SECTOR) {
            self.since.entry(sector).or_default().push(sector_of(&self.bytes, sector));
        }
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        self.set_len(self.bytes.len().max(at + from.len()));
        self.bytes[at..at + from.len()].copy_from_slice(from);
        self.note(at, from.len());
    }

    fn set_len(&mut self, len: usize) {
        let before = self.bytes.len();
        if before != len {
            self.bytes.resize(len, 0);
            self.note(len, before.saturating_sub(len));
            self.lengths.push(len);
            self.cuts.push(len);
        }
    }

    fn punch(&mut self, at: usize, len: usize) {
        let end = self.bytes.len().min(at.saturating_add(len));
        if at < end {
            self.bytes[at..end].fill(0);
            self.note(at, end - at);
        }
    }

    /// Notes a sync of some pages. The length is durable too.
    fn settle(&mut self, pages: std::ops::Range<u64>) {
        let per_page = PAGE_LEN / SECTOR;
        let end = (self.bytes.len().max(self.settled.len())).div_ceil(SECTOR);
        let (first, last) = (pages.start as usize * per_page, (pages.end as usize * per_page).min(end));
        for sector in first..last {
            let now = sector_of(&self.bytes, sector);
            if self.settled.len() < (sector + 1) * SECTOR {
                self.settled.resize((sector + 1) * SECTOR, 0);
            }
            self.settled[sector * SECTOR..][..SECTOR].copy_from_slice(&now);
            self.since.remove(&sector);
        }
        self.lengths = vec![self.bytes.len()];
        if self.since.is_empty() {
            self.cuts.clear();
        }
    }

    /// Checks what a crash has left.
    fn check_crashed(&self, found: &[u8]) {
        let longest = self.lengths.iter().max().copied().unwrap_or(0).next_multiple_of(PAGE_LEN);
        let shortest = self.lengths.iter().min().copied().unwrap_or(0);
        assert!((shortest..=longest).contains(&found.len()), "{} bytes, of {:?}", found.len(), self.lengths);
        for sector in 0..found.len().div_ceil(SECTOR) {
            let now = sector_of(found, sector);
            // A sector of which a shorter length has cut off a part is not compared.
            let is_cut = (sector + 1) * SECTOR > found.len();
            let settled = sector_of(&self.settled, sector);
            let mut has_been = self.since.get(&sector).into_iter().flatten().chain([&settled]);
            assert!(
                is_cut || has_been.any(|then| *then == now || self.is_cut_off(then, &now, sector)),
                "sector {sector} was never so: {:?}",
                &now[..16]
            );
        }
    }

    /// Whether a sector is as it was then, but for what a shorter length has cut off. A new length reaches
    /// the disk before the bytes that are in memory only.
    fn is_cut_off(&self, then: &Sector, now: &Sector, sector: usize) -> bool {
        let ends = self.cuts.iter().filter(|len| **len / SECTOR == sector).map(|len| len % SECTOR);
        ends.into_iter().any(|end| now[..end] == then[..end] && now[end..].iter().all(|byte| *byte == 0))
    }
}

impl<'s> Run<'s> {
    fn file(&self) -> &File {
        self.file.as_ref().expect("the file is open")
    }

    fn open(&mut self) {
        let options = FileOptions::new().create(true).direct(self.case.direct);
        let opened = match self.case.crashes {
            true => self.manager.open_backing(NAME, self.disk.backing(NAME), options),
            false => self.manager.open(self.path, options),
        };
        self.file = Some(opened.unwrap());
        assert_eq!(self.file().len_bytes().unwrap(), self.model.bytes.len() as u64);
    }

    /// Drops everything that uses the file, and compares it.
    fn close(&mut self) {
        for map in std::mem::take(&mut self.maps) {
            self.spaces[map.space].unmap(map.address, map.pages * PAGE).unwrap();
        }
        let keeps = self.pins.len() / 2;
        self.pins.truncate(keeps);
        self.pins.iter_mut().for_each(|pin| pin.is_alive = false);
        self.file = None;
        let bytes = match self.case.crashes {
            true => self.disk.bytes(NAME),
            false => std::fs::read(self.path).unwrap(),
        };
        assert_eq!(bytes.len(), self.model.bytes.len(), "the length after the last use");
        assert!(bytes == self.model.bytes, "the last use writes all: {:?}", self.difference(&bytes));
    }

    fn difference(&self, bytes: &[u8]) -> Option<(usize, u8, u8)> {
        let at = bytes.iter().zip(&self.model.bytes).position(|(found, expected)| found != expected)?;
        Some((at, bytes[at], self.model.bytes[at]))
    }

    fn take_ballast(&mut self) {
        for order in [Order::MAX, Order::ZERO] {
            loop {
                let stats = self.manager.stats().unwrap();
                let chunks = (stats.budget_bytes / 64 * 63).saturating_sub(stats.used_bytes) >> 12;
                if chunks + stats.free_frames <= self.case.room_frames + u64::from(order.frames()) {
                    break;
                }
                match self.manager.alloc_block(order).unwrap() {
                    Some(frame) => self.ballast.push((frame, order)),
                    None => break,
                }
            }
        }
    }

    fn drop_ballast(&mut self) {
        for (frame, order) in self.ballast.drain(..) {
            self.manager.free_block(frame, order).unwrap();
        }
    }

    /// Tries again without pins and ballast, which may leave no room.
    fn with_room<T>(&mut self, mut op: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        let is_short = |error: &Error| {
            matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::SwapFull)
        };
        let first = op(self);
        if !first.as_ref().is_err_and(is_short) {
            return first;
        }
        self.pins.clear();
        self.drop_ballast();
        for _ in 0..1000 {
            match op(self) {
                Err(error) if is_short(&error) => std::thread::yield_now(),
                other => return other,
            }
        }
        op(self)
    }

    fn fresh_bytes(&mut self, len: usize) -> Vec<u8> {
        self.stamp += 1;
        let mut random = Random::new(self.stamp);
        (0..len).map(|_| random.next() as u8 | 1).collect()
    }

    fn step(&mut self, (kind, a, b, c): Raw) {
        match kind % 32 {
            0..=3 if self.case.guards => self.write_map(a, b, c),
            4 | 5 if self.case.guards => self.read_map(a, b, c),
            0..=3 => self.write_at(a, b, c),
            4 | 5 => self.read_at(a, b, c),
            6 | 7 => self.map(a, b, c),
            8 => self.unmap(a),
            9..=12 => self.write_map(a, b, c),
            13..=15 => self.read_map(a, b, c),
            16 => self.pin(a, b),
            17 | 18 => self.use_pin(a, b),
            19 if !self.pins.is_empty() => {
                let at = usize::from(a) % self.pins.len();
                self.pins.swap_remove(at);
            }
            20 | 21 => self.set_len(a, b, c),
            22 => self.punch(a, b, c),
            23 | 24 => self.sync(),
            25 => self.sync_range(a, b),
            26 | 27 => {
                self.manager.reclaim(u64::from(b) % 300).unwrap();
            }
            28 => self.advise(a, b, c),
            29 => self.crash(b),
            30 => self.store_behind_end(a, b),
            31 if c < 64 => {
                self.close();
                self.open();
            }
            _ => self.check_everything(),
        }
    }

    /// A place in the file, or a little behind its end, and a number of bytes.
    fn place(&self, a: u16, b: u16, c: u8) -> (usize, usize) {
        let most = (self.model.bytes.len() as u64 + 3 * PAGE).min(MOST_BYTES - 1);
        let page = u64::from(a) % most.div_ceil(PAGE);
        let within = if c & 3 == 0 { 0 } else { u64::from(b) % PAGE };
        let len = match c >> 2 & 3 {
            0 => 8,
            1 => 1 + u64::from(b) % 300,
            2 => PAGE * (1 + u64::from(b) % 4),
            _ => 1 + u64::from(b) % 20_000,
        };
        let at = page * PAGE + within;
        (at as usize, len.min(MOST_BYTES - at) as usize)
    }

    fn write_at(&mut self, a: u16, b: u16, c: u8) {
        let (at, len) = self.place(a, b, c);
        let bytes = self.fresh_bytes(len);
        self.with_room(|run| run.file().write_at(at as u64, &bytes)).unwrap();
        self.model.write(at, &bytes);
    }

    fn read_at(&mut self, a: u16, b: u16, c: u8) {
        let (at, len) = self.place(a, b, c);
        let mut bytes = vec![0; len];
        let read = self
            .with_room(|run| {
                let mut some = vec![0; len];
                let read = run.file().read_at(at as u64, &mut some)?;
                Ok((read, some))
            })
            .map(|(read, some)| {
                bytes = some;
                read
            })
            .unwrap();
        let expected = self.model.bytes.get(at..).unwrap_or_default();
        let expected = &expected[..expected.len().min(len)];
        assert_eq!(read, expected.len(), "bytes read at {at}");
        assert!(bytes[..read] == *expected, "read_at({at}, {len})");
    }

    fn map(&mut self, a: u16, b: u16, c: u8) {
        if self.maps.len() == MOST_MAPS {
            return self.unmap(a);
        }
        let (first, pages) = (u64::from(a) % 300, 1 + u64::from(b) % 200);
        let guarded = self.case.guards;
        let (is_private, space) = (!guarded && c & 3 == 0, usize::from(c >> 2 & 1));
        let sharing = if is_private { Sharing::Private } else { Sharing::Shared };
        let address = self
            .with_room(|run| {
                let options = RegionOptions::new().guarded(guarded);
                run.spaces[space].map_file(run.file(), first * PAGE, pages * PAGE, sharing, options)
            })
            .unwrap();
        let own = is_private.then(BTreeMap::new);
        self.maps.push(Map { space, address, first, pages, guarded, own });
    }

    fn unmap(&mut self, a: u16) {
        if self.maps.is_empty() {
            return;
        }
        let at = usize::from(a) % self.maps.len();
        let map = self.maps.swap_remove(at);
        self.spaces[map.space].unmap(map.address, map.pages * PAGE).unwrap();
    }

    /// A map, one of its pages, and a range of bytes in the page.
    fn in_map(&self, a: u16, b: u16, c: u8) -> Option<(usize, u64, usize, usize)> {
        let map = usize::from(a) % self.maps.len().max(1);
        let page = u64::from(b) % self.maps.get(map)?.pages;
        let at = usize::from(a >> 3) * 8 % PAGE_LEN;
        let len = if c & 1 == 0 { 8 } else { 1 + usize::from(b) * 7 % (PAGE_LEN - at) };
        Some(if c & 6 == 0 { (map, page, 0, PAGE_LEN) } else { (map, page, at, len) })
    }

    fn write_map(&mut self, a: u16, b: u16, c: u8) {
        let Some((number, index, at, len)) = self.in_map(a, b, c) else { return };
        let map = &self.maps[number];
        let (page, address) = (map.first + index, map.address + index * PAGE + at as u64);
        let (space, guarded) = (&self.spaces[map.space], map.guarded);
        let inside = self.known_in_file(page);
        let own = map.own.as_ref().map(|own| own.get(&index).map(|own| own.known));
        let exists = page < self.model.pages() || own.flatten().is_some();
        // Bytes behind the end are written only by `store_behind_end`.
        let most = own.flatten().unwrap_or(inside);
        let len = if exists { len.min(most.saturating_sub(at)) } else { len };
        if exists && len == 0 {
            return;
        }
        let bytes = self.fresh_bytes(len);
        let written = self.with_room(|_| match guarded {
            true => {
                let mut guard = space.exclusive::<u8>(address - at as u64, PAGE_LEN)?;
                guard[at..at + len].copy_from_slice(&bytes);
                Ok(())
            }
            false if len == 8 => space.store(address, u64::from_le_bytes(bytes[..8].try_into().unwrap())),
            false => space.write(address, &bytes),
        });
        if !exists {
            assert_eq!(written.unwrap_err().kind(), ErrorKind::BeyondEnd, "page {page}");
            return;
        }
        written.unwrap();
        let shown = self.model.page(page);
        match &mut self.maps[number].own {
            Some(own) => {
                let own = own.entry(index).or_insert(OwnPage { bytes: shown, known: inside });
                own.bytes[at..at + len].copy_from_slice(&bytes);
                if len == PAGE_LEN {
                    own.known = PAGE_LEN;
                }
            }
            None => self.model.write((page * PAGE) as usize + at, &bytes),
        }
    }

    /// Bytes of a page in front of the end of the file.
    fn known_in_file(&self, page: u64) -> usize {
        self.model.bytes.len().saturating_sub((page * PAGE) as usize).min(PAGE_LEN)
    }

    fn read_map(&mut self, a: u16, b: u16, c: u8) {
        let Some((number, index, at, len)) = self.in_map(a, b, c) else { return };
        self.check_in_map(number, index, at, len);
    }

    fn check_in_map(&mut self, number: usize, index: u64, at: usize, len: usize) {
        let map = &self.maps[number];
        let (page, address) = (map.first + index, map.address + index * PAGE);
        let (space, guarded) = (&self.spaces[map.space], map.guarded);
        let found = self.with_room(|_| {
            let mut bytes = vec![0; PAGE_LEN];
            match guarded {
                true => bytes.copy_from_slice(&space.shared::<u8>(address, PAGE_LEN)?),
                false => space.read(address + at as u64, &mut bytes[at..at + len])?,
            }
            Ok(bytes)
        });
        let own = self.maps[number].own.as_ref().and_then(|own| own.get(&index));
        let (expected, known) = match own {
            Some(own) => (own.bytes.clone(), own.known),
            None if page < self.model.pages() => (self.model.page(page), self.known_in_file(page)),
            None => {
                assert_eq!(found.unwrap_err().kind(), ErrorKind::BeyondEnd, "page {page}");
                return;
            }
        };
        let (found, end) = (found.unwrap(), (at + len).min(known).max(at));
        assert!(
            found[at..end] == expected[at..end],
            "page {page} in a map, {at}..{end} (own: {}): {:?}",
            own.is_some(),
            (at..end).find(|at| found[*at] != expected[*at])
        );
    }

    fn pin(&mut self, a: u16, b: u16) {
        let Some((number, index, ..)) = self.in_map(a, b, 0) else { return };
        let map = &self.maps[number];
        let (page, address) = (map.first + index, map.address + index * PAGE);
        let space = &self.spaces[map.space];
        if map.own.is_some() || map.guarded || page >= self.model.pages() || self.pins.len() == MOST_PINS {
            return;
        }
        let pinned = self.with_room(|_| space.pin_exact(address, PAGE_LEN, Access::Write)).unwrap();
        self.pins.push(HeldPin { pin: pinned, page, is_alive: true });
    }

    fn use_pin(&mut self, a: u16, b: u16) {
        if self.pins.is_empty() {
            return;
        }
        let number = usize::from(a) % self.pins.len();
        let bytes = self.fresh_bytes(1 + usize::from(b) % 64);
        let HeldPin { page, is_alive, .. } = self.pins[number];
        let inside = self.known_in_file(page);
        let at = usize::from(b) * 3 % (PAGE_LEN - 64);
        if !is_alive {
            self.pins[number].pin.copy_in(at, &bytes).unwrap();
        } else if at + bytes.len() <= inside {
            let mut found = vec![0; inside];
            self.pins[number].pin.copy_out(0, &mut found).unwrap();
            assert!(found == self.model.page(page)[..inside], "a pin shows the file");
            self.pins[number].pin.copy_in(at, &bytes).unwrap();
            self.model.write((page * PAGE) as usize + at, &bytes);
        }
    }

    fn set_len(&mut self, a: u16, b: u16, c: u8) {
        let len = match c & 3 {
            0 => u64::from(a) % 400 * PAGE,
            1 => u64::from(a) % 400 * PAGE + u64::from(b) % PAGE,
            2 => (self.model.bytes.len() as u64).saturating_sub(u64::from(b) % 9000),
            _ => self.model.bytes.len() as u64 + u64::from(b) % 9000,
        };
        let whole = if self.case.guards { PAGE } else { 1 };
        let len = len.next_multiple_of(whole).min(MOST_BYTES);
        self.file().set_len_bytes(len).unwrap();
        self.model.set_len(len as usize);
        let pages = self.model.pages();
        self.pins.iter_mut().filter(|pin| pin.page >= pages).for_each(|pin| pin.is_alive = false);
    }

    fn punch(&mut self, a: u16, b: u16, c: u8) {
        let (mut at, mut len) = self.place(a, b, c);
        if self.case.guards {
            (at, len) = (at / PAGE_LEN * PAGE_LEN, len.next_multiple_of(PAGE_LEN));
        }
        self.with_room(|run| run.file().punch_hole(at as u64, len as u64)).unwrap();
        let end = (at + len).min(self.model.bytes.len());
        self.model.punch(at, len);
        let whole = at.div_ceil(PAGE_LEN) as u64..if end == self.model.bytes.len() {
            self.model.pages()
        } else {
            (end / PAGE_LEN) as u64
        };
        self.pins.iter_mut().filter(|pin| whole.contains(&pin.page)).for_each(|pin| pin.is_alive = false);
    }

    fn sync(&mut self) {
        self.file().sync().unwrap();
        self.model.settle(0..u64::from(u32::MAX));
        if !self.case.crashes {
            let bytes = std::fs::read(self.path).unwrap();
            assert_eq!(bytes.len(), self.model.bytes.len(), "the length after a sync");
            assert!(bytes == self.model.bytes, "after a sync: {:?}", self.difference(&bytes));
        }
        if self.pins.is_empty() && !self.case.stores_behind_end && !self.case.background {
            assert_eq!(self.file().dirty_bytes(), 0, "after a sync, nothing is dirty");
        }
    }

    fn sync_range(&mut self, a: u16, b: u16) {
        let (at, len, _) = (u64::from(a) * 7 % MOST_BYTES, u64::from(b) * 5, ());
        self.file().sync_range(at, len).unwrap();
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        self.model.settle(pages.clone());
        if !self.case.crashes {
            let bytes = std::fs::read(self.path).unwrap();
            assert!(bytes.len() >= self.model.bytes.len(), "the length after a sync of a part");
            let end = self.model.bytes.len().min((pages.end * PAGE) as usize);
            let start = end.min((pages.start * PAGE) as usize);
            assert!(bytes[start..end] == self.model.bytes[start..end], "after a sync of {pages:?}");
        }
    }

    fn advise(&mut self, a: u16, b: u16, c: u8) {
        let Some((number, index, ..)) = self.in_map(a, b, c) else { return };
        let advice = [Advice::PageOut, Advice::Cold, Advice::WillNeed, Advice::Free, Advice::Sequential];
        let advice = advice[usize::from(c) % advice.len()];
        let map = &mut self.maps[number];
        if map.guarded && advice == Advice::Free {
            return;
        }
        let pages = map.pages - index;
        if advice == Advice::Free
            && let Some(own) = &mut map.own
        {
            own.split_off(&index);
        }
        let (space, address) = (&self.spaces[map.space], map.address + index * PAGE);
        self.with_room(|_| space.advise(address, pages * PAGE, advice)).unwrap();
    }

    fn crash(&mut self, b: u16) {
        if self.case.crashes {
            let (events, mut random) = (self.disk.events(), Random::new(u64::from(b)));
            for crashed in self.disk.crashes(events, 4, &mut random) {
                self.model.check_crashed(&crashed.bytes(NAME));
            }
        }
    }

    /// Stores behind the end of the file, in its last page.
    fn store_behind_end(&mut self, a: u16, b: u16) {
        let (end, pages) = (self.model.bytes.len(), self.model.pages());
        if !self.case.stores_behind_end || self.case.background || end.is_multiple_of(PAGE_LEN) {
            return;
        }
        let at = (end / PAGE_LEN + 1) * PAGE_LEN - 1 - usize::from(b) % (PAGE_LEN - end % PAGE_LEN);
        let shows = |map: &&Map| {
            let range = map.first..map.first + map.pages;
            map.own.is_none() && !map.guarded && range.contains(&(pages - 1))
        };
        if let Some(map) = self.maps.iter().find(shows) {
            let address = map.address + at as u64 - map.first * PAGE;
            let space = &self.spaces[map.space];
            self.with_room(|_| space.store(address, a as u8 | 1)).unwrap();
        }
    }

    fn check_everything(&mut self) {
        for number in 0..self.maps.len() {
            for index in 0..self.maps[number].pages {
                self.check_in_map(number, index, 0, PAGE_LEN);
            }
        }
        self.crash(7);
        if self.case.guards {
            return;
        }
        let mut bytes = Vec::new();
        let len = self.model.bytes.len();
        self.with_room(|run| {
            let mut all = vec![0; len + 10];
            assert_eq!(run.file().read_at(0, &mut all)?, len);
            Ok(all)
        })
        .map(|all| bytes = all)
        .unwrap();
        assert!(bytes[..len] == self.model.bytes, "all of the file: {:?}", self.difference(&bytes));
    }
}
