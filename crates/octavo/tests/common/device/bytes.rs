//! The bytes of the test device, and the effects of reads and writes that succeed, fail or lie.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use octavo::PAGE_BYTES;
use octavo::io::{Direction, Transfer, TransferPage};

use super::whims::{Happened, Whims};
use super::{EIO, ENOSPC, Random};

pub(super) type PageBytes = [u8; PAGE_BYTES];

/// `Err(None)` drops the transfer without an answer.
pub(super) type TransferOutcome = Result<(), Option<io::Error>>;

/// The places of the device, and the random numbers that decide what happens to them.
pub(super) struct DeviceBytes {
    pub(super) random: Random,
    pub(super) whims: Whims,
    pub(super) happened: Happened,
    places: HashMap<u32, DevicePage>,
    /// The file of the bytes, if they are not in memory.
    file: Option<File>,
    /// The places that are being written. Places that are being read are not in this set: they may have been
    /// freed meanwhile, and have a new owner.
    written: HashSet<u32>,
}

struct DevicePage {
    /// `None` if the bytes are in the file.
    bytes: Option<Box<PageBytes>>,
    /// Whether the last write to the place succeeded.
    whole: bool,
}

/// Returns a copy of the current bytes of a write.
pub(super) fn copy_of(transfer: &Transfer) -> Vec<PageBytes> {
    let copy = |page: TransferPage<'_>| {
        let mut bytes = [0; PAGE_BYTES];
        page.copy_out(&mut bytes);
        bytes
    };
    transfer.pages().map(copy).collect()
}

impl DeviceBytes {
    pub(super) fn new(seed: u64, whims: Whims) -> Self {
        let (places, written) = (HashMap::new(), HashSet::new());
        Self { random: Random::new(seed), whims, happened: Happened::default(), places, file: None, written }
    }

    /// Keeps bytes in a file from now on.
    pub(super) fn set_file(&mut self, file: File) {
        self.file = Some(file);
    }

    fn get(&self, place: u32) -> Option<PageBytes> {
        let known = self.places.get(&place)?;
        Some(known.bytes.as_deref().copied().unwrap_or_else(|| {
            let mut bytes = [0; PAGE_BYTES];
            let file = self.file.as_ref().expect("bytes that are not in memory are in a file");
            file.read_exact_at(&mut bytes, Self::offset(place)).expect("the file takes reads");
            bytes
        }))
    }

    fn set(&mut self, place: u32, bytes: PageBytes, whole: bool) {
        let bytes = match &self.file {
            None => Some(Box::new(bytes)),
            Some(file) => {
                file.write_all_at(&bytes, Self::offset(place)).expect("the file takes writes");
                None
            }
        };
        self.places.insert(place, DevicePage { bytes, whole });
    }

    fn offset(place: u32) -> u64 {
        u64::from(place) * PAGE_BYTES as u64
    }

    /// Checks the contract when a transfer begins.
    pub(super) fn begin(&mut self, transfer: &Transfer) {
        for place in transfer.place()..transfer.place() + transfer.len() as u32 {
            if transfer.direction() == Direction::Write {
                assert!(self.written.insert(place), "place {place} is written twice at once");
            } else {
                assert!(!self.written.contains(&place), "place {place} is read while it is written");
                let whole = self.places.get(&place).is_some_and(|place| place.whole);
                assert!(whole, "place {place} is read but was not written");
            }
        }
    }

    /// Does a transfer. `told` is the error that the orders demand, if any. `early` has the bytes of a write
    /// if the device took them at once.
    pub(super) fn end(
        &mut self,
        transfer: &Transfer,
        told: Option<i32>,
        early: Option<Vec<PageBytes>>,
    ) -> TransferOutcome {
        let fails = match transfer.direction() {
            Direction::Read => self.read(transfer, told.is_some()),
            Direction::Write => self.write(transfer, told.is_some(), early),
        };
        if transfer.direction() == Direction::Write {
            let end = transfer.place() + transfer.len() as u32;
            self.written.retain(|place| !(transfer.place()..end).contains(place));
        }
        match told {
            Some(errno) => Err(Some(io::Error::from_raw_os_error(errno))),
            None if fails => Err(self.failure(transfer.direction())),
            None => Ok(()),
        }
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.random.below(1000) < per_mille
    }

    fn failure(&mut self, direction: Direction) -> Option<io::Error> {
        if self.whims.full && direction == Direction::Write {
            return Some(io::Error::from_raw_os_error(ENOSPC));
        }
        let short = if direction == Direction::Read {
            io::ErrorKind::UnexpectedEof
        } else {
            io::ErrorKind::WriteZero
        };
        match self.random.below(8) {
            0 => None,
            1 => Some(io::Error::from_raw_os_error(ENOSPC)),
            2..=4 => Some(io::Error::new(short, "part of the transfer was done")),
            _ => Some(io::Error::from_raw_os_error(EIO)),
        }
    }

    /// Returns whether it failed.
    fn read(&mut self, transfer: &Transfer, told: bool) -> bool {
        let fails = told || self.chance(self.whims.failed_reads);
        let lies = !fails && self.chance(self.whims.lying_reads);
        let liar = self.random.below(transfer.len() as u64) as usize;
        // A failing read may still bring some pages: the first ones, or others.
        let done = self.random.below(transfer.len() as u64 + 1) as usize;
        for (index, page) in transfer.pages().enumerate() {
            let place = transfer.place() + index as u32;
            let mut bytes = self.get(place).expect("what is read was written");
            if fails && index >= done {
                bytes.fill(0xDD);
            }
            if lies && index == liar {
                self.spoil(place, &mut bytes);
            }
            page.copy_in(&bytes);
        }
        self.happened.reads += 1;
        self.happened.failed_reads += u64::from(fails);
        self.happened.lies += u64::from(lies);
        self.happened.note(2, transfer.place(), u64::from(fails) << 1 | u64::from(lies));
        fails
    }

    /// Replaces a page's bytes by wrong ones.
    fn spoil(&mut self, place: u32, bytes: &mut PageBytes) {
        let before = *bytes;
        match self.random.below(4) {
            0 => bytes.fill(0),
            1 => {
                // The wrong bytes are the bytes of another place.
                let other = (0..8).find_map(|step| self.get(place ^ (1 << step)));
                *bytes = other.unwrap_or([0x5A; PAGE_BYTES]);
            }
            2 => bytes[PAGE_BYTES / 2..].fill(0xDD),
            _ => {}
        }
        if *bytes == before {
            let bit = self.random.below(PAGE_BYTES as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Returns whether it failed.
    fn write(&mut self, transfer: &Transfer, told: bool, early: Option<Vec<PageBytes>>) -> bool {
        let fails = told || self.chance(self.whims.failed_writes);
        let lost =
            (!fails && self.chance(self.whims.lost_writes)).then(|| self.random.below(transfer.len() as u64));
        let torn = self.random.one_in(2);
        let done = self.random.below(transfer.len() as u64 + 1) as usize;
        let bytes = early.unwrap_or_else(|| copy_of(transfer));
        for (index, bytes) in bytes.into_iter().enumerate() {
            let place = transfer.place() + index as u32;
            let written = if torn { self.random.one_in(2) } else { index < done };
            let known = self.places.contains_key(&place);
            let bytes = match fails {
                true if !written && known && self.random.one_in(2) => None,
                true if !written => Some([0xEE; PAGE_BYTES]),
                false if lost == Some(index as u64) && known => {
                    self.happened.lies += 1;
                    None
                }
                _ => Some(bytes),
            };
            match bytes {
                Some(bytes) => self.set(place, bytes, !fails),
                None => self.places.get_mut(&place).expect("old bytes were there").whole = !fails,
            }
        }
        self.happened.writes += 1;
        self.happened.failed_writes += u64::from(fails);
        self.happened.note(3, transfer.place(), u64::from(fails));
        fails
    }
}
