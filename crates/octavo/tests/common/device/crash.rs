//! A disk that records what it is told, and shows what a crash at any moment may leave on it.
//!
//! ```text
//!  events:   write  write  length  SYNC  write  write  punch ┊ crash
//!            └── on the disk for good ─┘  └─ each sector: as it was at the sync, or as one of these left it
//! ```
//!
//! The rules are those of a disk with a cache, below a file system that orders nothing:
//! - What was written before a sync of its file began is on the disk after the sync.
//! - Each sector of 512 bytes that was written since then has its old bytes, or those of any of these writes.
//!   So writes are torn, lost, and made in any order.
//! - The length is the old one, or any that the file has had since then. What the file then has and nobody
//!   wrote reads as zeros.
//!
//! A crash hits all files of the disk at one moment. The disk that it leaves is a disk again, on which a
//! program recovers. A crash just before a sync leaves all that an earlier crash since the sync before could
//! have left, so these moments and the end are enough, unless a program promised something in between.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use octavo::io::{Device, Direction, FileBacking, Submitted, Transfer, Urgency};

use super::Random;

const PAGE: usize = octavo::PAGE_BYTES;

/// What a disk keeps or loses at once.
pub const SECTOR: usize = 512;

pub type Sector = [u8; SECTOR];

/// The disk. Clones are handles to the same one.
#[derive(Clone, Default)]
pub struct CrashDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The names of the files, by their numbers.
    names: Vec<String>,
    /// What programs read now.
    files: Vec<Vec<u8>>,
    /// What was on the disk before the first event.
    first: Vec<Vec<u8>>,
    events: Vec<Event>,
}

enum Event {
    Write {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    /// Zeros that do not make the file longer.
    Punch {
        file: usize,
        at: usize,
        len: usize,
    },
    Length {
        file: usize,
        bytes: usize,
    },
    Sync {
        file: usize,
    },
}

/// A file of the disk, as the backing of a [`File`](octavo::file::File).
struct CrashFile {
    disk: CrashDisk,
    file: usize,
}

/// What a crash may have left of a file.
struct Unsettled {
    /// The bytes at the last sync.
    settled: Vec<u8>,
    /// The sectors that were written since, each with all that it may have, the last write last.
    sectors: BTreeMap<usize, Vec<Sector>>,
    /// All lengths that the file may have, the last one last.
    lengths: Vec<usize>,
}

impl CrashDisk {
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the backing of a file, for `Manager::open_backing`. The file is made if there is none of this
    /// name.
    pub fn backing(&self, name: &str) -> Box<dyn FileBacking> {
        let file = self.lock().number(name);
        Box::new(CrashFile { disk: self.clone(), file })
    }

    /// Returns the bytes of a file, as programs read them now.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let mut state = self.lock();
        let file = state.number(name);
        state.files[file].clone()
    }

    /// Returns how many events there were. A program that promises something notes this number: each crash at
    /// this number or later has to keep the promise.
    pub fn events(&self) -> usize {
        self.lock().events.len()
    }

    /// Returns the moments at which a crash leaves all that it may leave: before each sync, and at the end.
    pub fn moments(&self) -> Vec<usize> {
        let state = self.lock();
        let is_sync = |at: &usize| matches!(state.events[*at], Event::Sync { .. });
        (0..state.events.len()).filter(is_sync).chain([state.events.len()]).collect()
    }

    /// Returns all disks that a crash after the first `events` events may leave, if they are at most `most`.
    /// Otherwise returns `most` of them: those that keep all or nothing, and random ones.
    pub fn crashes(&self, events: usize, most: usize, random: &mut Random) -> Vec<CrashDisk> {
        let unsettled = self.lock().unsettled(events);
        let choices: Vec<usize> = unsettled.iter().flat_map(Unsettled::choices).collect();
        let all = choices.iter().try_fold(1_usize, |all, of| all.checked_mul(*of));
        let after = |chosen: &[usize]| self.after(&unsettled, chosen);
        if let Some(all) = all.filter(|all| *all <= most) {
            return (0..all)
                .map(|mut number| {
                    let digit = |of: &usize| {
                        let digit = number % of;
                        number /= of;
                        digit
                    };
                    after(&choices.iter().map(digit).collect::<Vec<_>>())
                })
                .collect();
        }
        let with = |mut choose: Box<dyn FnMut(usize) -> usize + '_>| {
            after(&choices.iter().map(|of| choose(*of)).collect::<Vec<_>>())
        };
        (0..most)
            .map(|number| match number {
                0 => with(Box::new(|_| 0)),
                1 => with(Box::new(|of| of - 1)),
                // Nearly nothing, nearly all, or anything.
                _ => {
                    let (usual, rarely) = (random.below(3), 1 + random.below(16));
                    with(Box::new(|of| match usual {
                        0 if !random.one_in(rarely) => 0,
                        1 if !random.one_in(rarely) => of - 1,
                        _ => random.below(of as u64) as usize,
                    }))
                }
            })
            .collect()
    }

    fn after(&self, unsettled: &[Unsettled], mut chosen: &[usize]) -> CrashDisk {
        let files: Vec<_> = unsettled
            .iter()
            .map(|file| {
                let (own, rest) = chosen.split_at(file.choices().count());
                chosen = rest;
                file.chosen(own)
            })
            .collect();
        let names = self.lock().names.clone();
        CrashDisk(Arc::new(Mutex::new(State { names, first: files.clone(), files, events: Vec::new() })))
    }
}

impl State {
    fn number(&mut self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.files.push(Vec::new());
            self.first.push(Vec::new());
            self.names.len() - 1
        })
    }

    fn unsettled(&self, events: usize) -> Vec<Unsettled> {
        let of_file = |number: usize| {
            let mut bytes = self.first[number].clone();
            let mut unsettled = Unsettled::after_sync(&bytes);
            for event in &self.events[..events] {
                match event {
                    Event::Write { file, at, bytes: written } if *file == number => {
                        grow_to(&mut bytes, at + written.len());
                        bytes[*at..at + written.len()].copy_from_slice(written);
                        unsettled.note(&bytes, *at, written.len());
                    }
                    Event::Punch { file, at, len } if *file == number => {
                        let end = bytes.len().min(at + len);
                        bytes[*at..end].fill(0);
                        unsettled.note(&bytes, *at, end - at);
                    }
                    Event::Length { file, bytes: len } if *file == number => {
                        let before = bytes.len();
                        bytes.resize(*len, 0);
                        // What is cut off is zeros, if the file gets longer again.
                        unsettled.note(&bytes, *len, before.saturating_sub(*len));
                    }
                    Event::Sync { file } if *file == number => unsettled = Unsettled::after_sync(&bytes),
                    _ => {}
                }
            }
            unsettled
        };
        (0..self.names.len()).map(of_file).collect()
    }
}

fn grow_to(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(bytes.len().max(len), 0);
}

/// The sector of a file that is zeros behind its end.
pub fn sector_of(bytes: &[u8], sector: usize) -> Sector {
    let mut found = [0; SECTOR];
    let rest = bytes.get(sector * SECTOR..).unwrap_or_default();
    let len = rest.len().min(SECTOR);
    found[..len].copy_from_slice(&rest[..len]);
    found
}

impl Unsettled {
    fn after_sync(bytes: &[u8]) -> Self {
        Self { settled: bytes.to_vec(), sectors: BTreeMap::new(), lengths: vec![bytes.len()] }
    }

    /// Notes what a write left in its sectors, and the length.
    fn note(&mut self, bytes: &[u8], at: usize, len: usize) {
        self.lengths.retain(|known| *known != bytes.len());
        self.lengths.push(bytes.len());
        for sector in at / SECTOR..(at + len).div_ceil(SECTOR) {
            let may_be = self.sectors.entry(sector).or_insert_with(|| vec![sector_of(&self.settled, sector)]);
            let now = sector_of(bytes, sector);
            // The last write comes last, so that the last choices are all that was written.
            may_be.retain(|known| *known != now);
            may_be.push(now);
        }
    }

    /// How many there are to choose from: for the length, and then for each sector.
    fn choices(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.lengths.len()).chain(self.sectors.values().map(Vec::len))
    }

    fn chosen(&self, chosen: &[usize]) -> Vec<u8> {
        let (len, mut bytes) = (self.lengths[chosen[0]], self.settled.clone());
        for ((sector, may_be), chosen) in self.sectors.iter().zip(&chosen[1..]) {
            grow_to(&mut bytes, (sector + 1) * SECTOR);
            bytes[sector * SECTOR..][..SECTOR].copy_from_slice(&may_be[*chosen]);
        }
        bytes.resize(len, 0);
        bytes
    }
}

impl CrashFile {
    fn read(&self, transfer: &Transfer) -> io::Result<()> {
        let state = self.disk.lock();
        let bytes = &state.files[self.file];
        for (place, page) in (transfer.place() as usize..).zip(transfer.pages()) {
            let rest = bytes.get(place * PAGE..).filter(|rest| !rest.is_empty());
            let rest = rest.ok_or(io::ErrorKind::UnexpectedEof)?;
            let (mut read, len) = ([0; PAGE], rest.len().min(PAGE));
            read[..len].copy_from_slice(&rest[..len]);
            page.copy_in(&read);
        }
        Ok(())
    }

    fn write(&self, transfer: &Transfer) {
        let mut bytes = vec![0; transfer.len() * PAGE];
        for (page, to) in transfer.pages().zip(bytes.chunks_exact_mut(PAGE)) {
            page.copy_out(to.try_into().expect("a page"));
        }
        let (at, mut state) = (transfer.place() as usize * PAGE, self.disk.lock());
        let file = &mut state.files[self.file];
        grow_to(file, at + bytes.len());
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        state.events.push(Event::Write { file: self.file, at, bytes });
    }
}

impl Device for CrashFile {
    fn capacity_pages(&self) -> u32 {
        u32::MAX >> 1
    }

    fn submit(&self, transfer: Transfer, _urgency: Urgency) -> Submitted {
        let result = match transfer.direction() {
            Direction::Read => self.read(&transfer),
            Direction::Write => {
                self.write(&transfer);
                Ok(())
            }
        };
        transfer.complete(result);
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        "a disk that crashes".into()
    }
}

impl FileBacking for CrashFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.file].len() as u64)
    }

    fn set_len_bytes(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.files[self.file].resize(bytes as usize, 0);
        state.events.push(Event::Length { file: self.file, bytes: bytes as usize });
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let (at, len, mut state) = (offset as usize, len as usize, self.disk.lock());
        let file = &mut state.files[self.file];
        if at > file.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let end = file.len().min(at + len);
        file[at..end].fill(0);
        state.events.push(Event::Punch { file: self.file, at, len });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.lock().events.push(Event::Sync { file: self.file });
        Ok(())
    }
}
