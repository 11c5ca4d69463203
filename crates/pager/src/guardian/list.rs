//! The list of the processes that are entrusted to the guardians: an unnamed file in memory. The runner
//! writes it, and a guardian reads it once the runner is dead. All completed writes survive the runner's
//! death.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

/// What an entry says about a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable)]
#[repr(u32)]
pub(super) enum Trust {
    /// The entry is free.
    #[default]
    Free,
    /// The runner has pages of the process.
    Managed,
    /// The process stands still until it is taken over.
    Stopped,
}

/// A process that is entrusted to the guardians.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct EntrustedProcess {
    pub(super) what: Trust,
    /// 0 for a fork's child that has not been found yet.
    pub(super) pid: u32,
    /// The start time of the process. If its number was reused, the new process has a later start time.
    pub(super) start: u64,
    /// The address at which the process's stack begins.
    pub(super) stack: u64,
}

/// The runner's side.
#[derive(Debug)]
pub(super) struct EntrustedList {
    pub(super) file: File,
    entries: Vec<EntrustedProcess>,
}

impl EntrustedList {
    pub(super) fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("octavo-entrusted", MemfdFlags::CLOEXEC)?);
        Ok(Self { file, entries: Vec::new() })
    }

    /// Puts an entry on the list, and returns its place.
    ///
    /// # Errors
    /// Returns the kernel's error if memory runs out. Then the entry is not on the list.
    pub(super) fn put(&mut self, entry: EntrustedProcess) -> io::Result<usize> {
        let free = self.entries.iter().position(|entry| entry.what == Trust::Free);
        let place = free.unwrap_or(self.entries.len());
        self.write(place, entry)?;
        if free.is_none() {
            self.entries.push(entry);
        }
        self.entries[place] = entry;
        Ok(place)
    }

    /// Changes the entry at a place.
    pub(super) fn change(&mut self, place: usize, change: impl FnOnce(&mut EntrustedProcess)) {
        change(&mut self.entries[place]);
        // The file has memory at this place already, so the write cannot fail.
        let _ = self.write(place, self.entries[place]);
    }

    /// Takes entries off the list.
    pub(super) fn remove(&mut self, which: impl Fn(&EntrustedProcess) -> bool) {
        for place in (0..self.entries.len()).filter(|place| which(&self.entries[*place])).collect::<Vec<_>>()
        {
            self.change(place, |entry| *entry = EntrustedProcess::default());
        }
    }

    fn write(&self, place: usize, entry: EntrustedProcess) -> io::Result<()> {
        self.file.write_all_at(entry.as_bytes(), (place * size_of::<EntrustedProcess>()) as u64)
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> impl Iterator<Item = &EntrustedProcess> {
        self.entries.iter().filter(|entry| entry.what != Trust::Free)
    }
}

/// Reads the list from a file.
pub(super) fn read(mut file: &File) -> io::Result<Vec<EntrustedProcess>> {
    let mut bytes = Vec::new();
    // Another guardian may have read the file to its end.
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let entries = bytes
        .chunks_exact(size_of::<EntrustedProcess>())
        .filter_map(|entry| EntrustedProcess::try_read_from_bytes(entry).ok());
    Ok(entries.filter(|entry| entry.what != Trust::Free).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_list_is_read_from_its_file() {
        let mut list = EntrustedList::new().unwrap();
        let managed = |pid| EntrustedProcess { what: Trust::Managed, pid, start: 1 << 40, stack: u64::MAX };
        let stopped = EntrustedProcess { what: Trust::Stopped, pid: 8, ..EntrustedProcess::default() };
        let (first, second) = (list.put(managed(1)).unwrap(), list.put(managed(2)).unwrap());
        list.put(stopped).unwrap();
        list.change(second, |entry| entry.pid = 3);
        let read = |list: &EntrustedList| read(&list.file).unwrap();
        assert_eq!(read(&list), [managed(1), managed(3), stopped]);
        list.change(first, |entry| *entry = EntrustedProcess::default());
        list.remove(|entry| entry.what == Trust::Stopped);
        assert_eq!(read(&list), [managed(3)]);
        assert_eq!(list.put(managed(4)).unwrap(), first, "places are used again");
        assert_eq!(read(&list), [managed(4), managed(3)]);
    }
}
