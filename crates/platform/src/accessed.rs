//! The processor's accessed bits of the pages of a process.
//!
//! Each entry of a page table has a bit that the processor sets when the page is used. The kernel's own
//! reclaim uses it, but no file and no system call of Linux reports it page by page. A program in the
//! kernel's virtual machine (eBPF) can read the tables ([`AccessedBits::look`]). `MADV_COLD` clears the bit;
//! without kernel swap, it does nothing else to an anonymous page ([`forget`], [`forget_range`]).
//!
//! ```text
//!   look:    process ──► top table ──► … ──► entry: used?         read by a program in the kernel
//!   forget:  MADV_COLD                                             their next use sets the bit again
//! ```
//!
//! A bit is a hint. The answer may be out of date. If the tables change meanwhile, it may even belong to
//! another page.
//!
//! **Privileges.** Root may use this, unless the kernel is locked down. Other users need `CAP_BPF` and
//! `CAP_PERFMON` for the programs in the kernel, `CAP_SYS_NICE` to clear bits, and `CAP_SYSLOG` if the kernel
//! randomizes the place of its memory. The kernel must be 6.13 or newer, with descriptions of its types
//! (BTF). The start tries to read and to clear bits of pages of this process. In a guest whose memory the
//! processor encrypts (SEV), this trial fails.
//!
//! **A forked child** must not look: it would share the words with its parent.
//!
//! Costs: a look takes about 2 µs per call, plus 3 ns per page in a run of neighbours and 40 ns per other
//! page. Clearing bits takes 0.02 µs per page, and interrupts each CPU that runs the process once per range.
//! On a virtual machine, an interruption takes 40 µs, and costs the process 25 to 80 µs. The process's next
//! use of a page takes half a microsecond longer. The start takes about 20 ms and 1 MiB, once. Before Linux
//! 6.16 the types cannot be mapped, and the start takes 180 ms and 40 MiB, of which 13 MiB stay.
//!
//! Sources: `Documentation/bpf/` and `mm/madvise.c` of Linux; for the layout of tables, AMD64 Architecture
//! Programmer's Manual, volume 2, chapter 5.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use btf_rs::{Backend, Btf, Type};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities};

mod program;

use program::{Instruction, KernelLayout, MOST_PAGES, MOST_RUNS, TABLE_PAGES, words};

use crate::PAGE_BYTES;

/// The state of a page, by its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// The page is present, and was not used.
    Unused,
    /// The page was used.
    Used,
    /// The page was used, and is not writable: a store would first make a copy, since a fork shares or shared
    /// the page, or stores are forbidden.
    UsedUnwritable,
    /// The page is missing, or is part of a huge page, so that its own use is unknown.
    Unknown,
}

/// Bits of an entry.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USED: u64 = 1 << 5;
/// Userfaultfd protects the page, so that it is not writable for now.
const PROTECTED: u64 = 1 << 10;
const LARGE: u64 = 1 << 7;
/// The bytes that one table maps.
const TABLE_BYTES: u64 = (TABLE_PAGES * PAGE_BYTES) as u64;

impl PageUse {
    fn of(entry: u64) -> Self {
        match entry {
            _ if entry & PRESENT == 0 || entry & LARGE != 0 => Self::Unknown,
            _ if entry & USED == 0 => Self::Unused,
            _ if entry & (WRITABLE | PROTECTED) == 0 => Self::UsedUnwritable,
            _ => Self::Used,
        }
    }

    /// Returns whether the page was used.
    pub fn is_used(self) -> bool {
        matches!(self, Self::Used | Self::UsedUnwritable)
    }
}

/// The reader of this process. Its programs stay in the kernel as long as the process lives.
static ONE: OnceLock<Result<AccessedBits, String>> = OnceLock::new();

/// Reads accessed bits.
#[derive(Debug)]
pub struct AccessedBits {
    walk: OwnedFd,
    /// The lock allows one look at a time. Only reclaim looks, so no access waits for it.
    words: Mutex<ControlWords>,
}

impl AccessedBits {
    /// Makes the one reader of this process, if it does not exist yet.
    ///
    /// # Errors
    /// A sentence that says what the kernel forbids or lacks.
    pub fn prepare() -> Result<&'static Self, &'static str> {
        ONE.get_or_init(|| Self::new().map_err(|error| error.to_string())).as_ref().map_err(String::as_str)
    }

    /// Returns the one reader of this process, if it was [prepared](Self::prepare). Costs a load.
    pub fn ready() -> Option<&'static Self> {
        ONE.get().and_then(|made| made.as_ref().ok())
    }

    /// Returns why [`prepare`](Self::prepare) failed, if it did.
    pub fn refusal() -> Option<&'static str> {
        ONE.get().and_then(|made| made.as_ref().err()).map(String::as_str)
    }

    fn new() -> io::Result<Self> {
        // A process may advise its own memory without this capability. So the trial below would not notice
        // that the capability is missing.
        if !capabilities(None)?.effective.contains(CapabilitySet::SYS_NICE) {
            return Err(io::Error::other("to forget what another process has used takes CAP_SYS_NICE"));
        }
        let kernel = kernel_types()?;
        let words = ControlWords::new().map_err(refused("to share words with a program in the kernel"))?;
        let has_five_levels = std::fs::read_to_string("/proc/cpuinfo")?.contains(" la57");
        words.set(words::LEVELS, if has_five_levels { 5 } else { 4 });
        const NAME: &[u8; 17] = b"page_offset_base\0";
        for (index, bytes) in NAME.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            words.set(words::NAME + index, u64::from_ne_bytes(word));
        }
        let load =
            |program: &[Instruction]| load(program).map_err(refused("to load a program into the kernel"));
        let locate = load(&program::locate(words.map.as_raw_fd(), NAME.len()))?;
        let located = run(&locate)? as i32;
        if located == -libc::EPERM {
            return Err(io::Error::other(
                "the kernel does not tell where its memory is; it does with CAP_SYSLOG, unless kernel.kptr_restrict is 2",
            ));
        }
        if located != 0 {
            // The kernel does not randomize its memory. These are the fixed places
            // (`Documentation/arch/x86/x86_64/mm.rst`).
            words.set(words::MEMORY, if has_five_levels { 0xff11 << 48 } else { 0xffff_8880 << 32 });
        }
        let walk = load(&program::walk(words.map.as_raw_fd(), kernel))?;
        let bits = Self { walk, words: Mutex::new(words) };
        bits.try_out()?;
        Ok(bits)
    }

    /// Looks at pages of a process. Returns the state of each, in order.
    ///
    /// # Errors
    /// `NotFound` if the process has ended; otherwise the kernel's error.
    pub fn look(&self, pid: u32, pages: &[u64]) -> io::Result<Vec<PageUse>> {
        let mut seen = Vec::with_capacity(pages.len());
        let words = self.words.lock().expect("nobody panics here");
        words.set(words::PID, pid.into());
        let mut rest = pages;
        while !rest.is_empty() {
            let (mut count, mut asked) = (0, 0);
            for run in rest.chunk_by(|a, b| follows(*a, *b) && b / TABLE_BYTES == a / TABLE_BYTES) {
                if count == MOST_RUNS || asked + run.len() > MOST_PAGES {
                    break;
                }
                words.set(words::RUNS + count, run[0] | run.len() as u64);
                count += 1;
                asked += run.len();
            }
            words.set(words::COUNT, count as u64);
            if run(&self.walk)? != 0 {
                return Err(io::ErrorKind::NotFound.into());
            }
            seen.extend((0..asked).map(|index| PageUse::of(words.get(words::ENTRIES + index))));
            rest = &rest[asked..];
        }
        Ok(seen)
    }

    /// Tries looking and forgetting on pages of this process.
    fn try_out(&self) -> io::Result<()> {
        /// The kernel may hold a page for a moment.
        const TRIES: u32 = 16;
        const BETWEEN: Duration = Duration::from_millis(2);
        let own = std::process::id();
        let process = open(own)?;
        let range = crate::Reservation::new(3 * PAGE_BYTES, PAGE_BYTES)?;
        range.advise_backing(0..3 * PAGE_BYTES, crate::Backing::BasePages);
        // Without this, a fork during the trial would share the pages.
        range.exclude_from_fork()?;
        let pages = [0, 1, 2].map(|index| (range.base().as_ptr() as usize + index * PAGE_BYTES) as u64);
        let look = || self.look(own, &pages);
        let missing = look()?;
        range.populate(0..2 * PAGE_BYTES)?;
        for _ in 0..TRIES {
            let there = look()?;
            forget(process.as_fd(), &pages[..2])?;
            let forgotten = look()?;
            // Read a page of this process that nobody has borrowed.
            let bytes = range.base();
            // SAFETY: the page is in the populated part of the reservation, which lives.
            unsafe { bytes.as_ptr().add(PAGE_BYTES).cast_const().read_volatile() };
            let used = look()?;
            if missing == [PageUse::Unknown; 3]
                && there == [PageUse::Used, PageUse::Used, PageUse::Unknown]
                && forgotten == [PageUse::Unused, PageUse::Unused, PageUse::Unknown]
                && used == [PageUse::Unused, PageUse::Used, PageUse::Unknown]
            {
                return Ok(());
            }
            // SAFETY: as above.
            unsafe { bytes.as_ptr().cast_const().read_volatile() };
            std::thread::sleep(BETWEEN);
        }
        Err(io::Error::other("this kernel's page tables do not say which pages were used"))
    }
}

/// Makes an error that says what the kernel refused.
fn refused(what: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| {
        io::Error::other(format!("the kernel refuses {what} (it takes CAP_BPF and CAP_PERFMON): {error}"))
    }
}

/// Opens a process for [`forget`].
///
/// # Errors
/// The kernel's error if there is no such process.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Forgets that pages of a process were used. The pages are in order. Returns the pages that the kernel
/// refused, which are locked or no longer mapped. The kernel also skips pages that a fork shares or that it
/// holds at the moment, and does not report them.
///
/// # Errors
/// The kernel's error if the process has ended, or if this process lacks `CAP_SYS_NICE`.
pub fn forget(process: BorrowedFd<'_>, pages: &[u64]) -> io::Result<Vec<u64>> {
    let (mut refused, mut rest) = (Vec::new(), pages);
    while !rest.is_empty() {
        match advise_pages_cold(process, rest) {
            Ok(done) => rest = &rest[done..],
            // The kernel refuses a page of the first range, and does not say which.
            Err(Errno::INVAL | Errno::NOMEM) => {
                let range = ranges(rest).next().expect("there are pages");
                for page in range {
                    match advise_pages_cold(process, std::slice::from_ref(page)) {
                        Ok(_) => {}
                        Err(Errno::INVAL | Errno::NOMEM) => refused.push(*page),
                        Err(error) => return Err(error.into()),
                    }
                }
                rest = &rest[range.len()..];
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused)
}

/// The part of a range that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// All pages, except those that a fork shares or that the kernel holds at the moment.
    All,
    /// The pages before a mapping that the kernel refuses: one that is locked, of huge pages, or of a device.
    Part,
}

/// Forgets which pages of a process were used, from the first to the last. Many pages cost hardly more than
/// one: the call interrupts each CPU that runs the process, once per mapping. Unmapped parts do not matter.
/// The kernel also marks pages of files in the range as cold, and may split a large folio that is only partly
/// in the range.
///
/// # Errors
/// The kernel's error if the process has ended, or if this process lacks `CAP_SYS_NICE`.
pub fn forget_range(process: BorrowedFd<'_>, first: u64, last: u64) -> io::Result<Forgotten> {
    let vector = libc::iovec { iov_base: first as *mut _, iov_len: (last - first) as usize + PAGE_BYTES };
    match advise_cold(process, &[vector]) {
        // The kernel continues after unmapped parts.
        Ok(_) | Err(Errno::NOMEM) => Ok(Forgotten::All),
        Err(Errno::INVAL) => Ok(Forgotten::Part),
        Err(error) => Err(error.into()),
    }
}

/// Splits pages in order into runs of neighbours.
pub fn ranges(pages: &[u64]) -> impl Iterator<Item = &[u64]> {
    pages.chunk_by(|a, b| follows(*a, *b))
}

fn follows(page: u64, next: u64) -> bool {
    page + PAGE_BYTES as u64 == next
}

/// Advises the kernel that pages are cold. The pages are in order. Stops at the first range that the kernel
/// refuses, and returns how many pages come before that.
fn advise_pages_cold(process: BorrowedFd<'_>, pages: &[u64]) -> Result<usize, Errno> {
    /// The most ranges of a call (`UIO_MAXIOV`).
    const MOST_RANGES: usize = 1024;
    let vectors: Vec<_> = ranges(pages)
        .take(MOST_RANGES)
        .map(|range| libc::iovec { iov_base: range[0] as *mut _, iov_len: range.len() * PAGE_BYTES })
        .collect();
    advise_cold(process, &vectors)
}

fn advise_cold(process: BorrowedFd<'_>, vectors: &[libc::iovec]) -> Result<usize, Errno> {
    let (process, first, len) = (process.as_raw_fd(), vectors.as_ptr(), vectors.len());
    // SAFETY: the vectors are live for the call. The kernel treats them as addresses of the process, whose
    // bytes do not change.
    let done =
        unsafe { libc::syscall(libc::SYS_process_madvise, process, first, len, libc::MADV_COLD, 0_u32) };
    match usize::try_from(done) {
        Ok(0) => Err(Errno::INVAL),
        Ok(bytes) => Ok(bytes / PAGE_BYTES),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Finds the facts about this kernel that the programs need.
fn kernel_types() -> io::Result<KernelLayout> {
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    let unknown = |error: btf_rs::Error| io::Error::other(format!("cannot read the kernel's types: {error}"));
    // A kernel before 6.16 does not map this file.
    let btf = Btf::from_file_with_backend(TYPES, Backend::Mmap)
        .or_else(|_| Btf::from_file_with_backend(TYPES, Backend::Cache))
        .map_err(unknown)?;
    let function = |name: &str| {
        let mut ids = btf.resolve_ids_by_name(name).map_err(unknown)?.into_iter();
        let found = ids.find(|id| matches!(btf.resolve_type_by_id(*id), Ok(Type::Func(_))));
        found.ok_or_else(|| io::Error::other(format!("the kernel has no {name}, which Linux 6.13 brings")))
    };
    let offset = |structure: &str, member: &str| {
        let types = btf.resolve_types_by_name(structure).map_err(unknown)?;
        let found = types.iter().find_map(|found| match found {
            Type::Struct(found) => member_offset(&btf, found, member),
            _ => None,
        });
        let found = found.and_then(|bits| i16::try_from(bits / 8).ok());
        found.ok_or_else(|| io::Error::other(format!("the kernel's {structure} has no {member}")))
    };
    Ok(KernelLayout {
        find_task: function("bpf_task_from_vpid")?,
        release_task: function("bpf_task_release")?,
        memory_of_task: offset("task_struct", "mm")?,
        table_of_memory: offset("mm_struct", "pgd")?,
    })
}

/// Returns the offset in bits of a member of a structure. The member may lie in an unnamed structure inside
/// that structure.
fn member_offset(btf: &Btf, structure: &btf_rs::Struct, name: &str) -> Option<u32> {
    structure.members.iter().find_map(|member| match btf.resolve_name(member).ok()?.as_str() {
        found if found == name => Some(member.bit_offset()),
        "" => match btf.resolve_chained_type(member).ok()? {
            Type::Struct(inner) | Type::Union(inner) => {
                Some(member.bit_offset() + member_offset(btf, &inner, name)?)
            }
            _ => None,
        },
        _ => None,
    })
}

/// The words that the programs share with this process.
#[derive(Debug)]
struct ControlWords {
    map: OwnedFd,
    all: &'static [AtomicU64],
}

impl ControlWords {
    const BYTES: usize = (words::ALL * 8).next_multiple_of(PAGE_BYTES);

    fn new() -> io::Result<Self> {
        const ARRAY: u32 = 2;
        const MAPPABLE: u32 = 1 << 10;
        let mut attributes = Attributes::default();
        attributes.set_u32(0, ARRAY);
        attributes.set_u32(4, 4);
        attributes.set_u32(8, Self::BYTES as u32);
        attributes.set_u32(12, 1);
        attributes.set_u32(16, MAPPABLE);
        let map = bpf_descriptor(Command::CreateMap, &mut attributes)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range, so nothing of ours is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), Self::BYTES, access, MapFlags::SHARED, &map, 0)? };
        // SAFETY: the range is mapped, aligned to a page, as long as these words, zero, and never unmapped:
        // the only reader, if there is one, lives as long as the process. The only other writer is the
        // kernel, and atomics allow that.
        let all = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), words::ALL) };
        Ok(Self { map, all })
    }

    // Relaxed: a run is a system call by this thread, which orders these words with the program's accesses.
    fn get(&self, index: usize) -> u64 {
        self.all[index].load(Ordering::Relaxed)
    }

    fn set(&self, index: usize, value: u64) {
        self.all[index].store(value, Ordering::Relaxed);
    }
}

/// Commands of `bpf(2)`.
#[derive(Clone, Copy, Debug)]
enum Command {
    CreateMap = 0,
    LoadProgram = 5,
    RunProgram = 10,
}

/// `union bpf_attr`, by offsets in bytes.
#[derive(Debug)]
#[repr(C, align(8))]
struct Attributes([u8; 144]);

impl Default for Attributes {
    fn default() -> Self {
        Self([0; 144])
    }
}

impl Attributes {
    fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn set_address<T>(&mut self, at: usize, of: *const T) {
        self.0[at..at + 8].copy_from_slice(&(of as u64).to_ne_bytes());
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("4 bytes"))
    }
}

fn bpf(command: Command, attributes: &mut Attributes) -> io::Result<i32> {
    // SAFETY: the attributes are live for the call, and have the stated length. The caller owns the memory
    // that they point to, and it outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as i32, attributes.0.as_mut_ptr(), size_of::<Attributes>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn bpf_descriptor(command: Command, attributes: &mut Attributes) -> io::Result<OwnedFd> {
    let descriptor = bpf(command, attributes)?;
    // SAFETY: the kernel has just made it for this call (close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes the kernel verify and load a program.
fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    /// A program that a system call runs, and that may sleep.
    const SYSCALL: u32 = 31;
    const MAY_SLEEP: u32 = 1 << 4;
    // Only a program with a licence compatible with the kernel's, like ours, may read the kernel's memory.
    let licence = c"Dual MIT/GPL";
    let mut attributes = Attributes::default();
    attributes.set_u32(0, SYSCALL);
    attributes.set_u32(4, instructions.len() as u32);
    attributes.set_address(8, instructions.as_ptr());
    attributes.set_address(16, licence.as_ptr());
    attributes.set_u32(44, MAY_SLEEP);
    bpf_descriptor(Command::LoadProgram, &mut attributes)
}

/// Runs a program, and returns its result.
fn run(program: &OwnedFd) -> io::Result<u32> {
    const RESULT: usize = 4;
    let mut attributes = Attributes::default();
    attributes.set_u32(0, program.as_raw_fd() as u32);
    bpf(Command::RunProgram, &mut attributes)?;
    Ok(attributes.u32(RESULT))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Backing, Reservation};

    const PAGES: usize = 600;

    #[test]
    fn a_used_page_to_which_a_store_would_make_a_copy_is_told_apart() {
        assert_eq!([0, PRESENT | LARGE | USED].map(PageUse::of), [PageUse::Unknown; 2]);
        assert_eq!([PRESENT, PRESENT | WRITABLE].map(PageUse::of), [PageUse::Unused; 2]);
        let used = PRESENT | USED;
        assert_eq!([used | WRITABLE, used | PROTECTED].map(PageUse::of), [PageUse::Used; 2]);
        assert_eq!(PageUse::of(used), PageUse::UsedUnwritable);
        assert!(PageUse::UsedUnwritable.is_used() && PageUse::Used.is_used() && !PageUse::Unused.is_used());
    }

    #[test]
    fn pages_that_were_used_since_they_were_forgotten_are_told_apart() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: not tested");
            return;
        }
        let started = Instant::now();
        let bits = AccessedBits::prepare().unwrap();
        eprintln!("made in {:?}", started.elapsed());
        let own = std::process::id();
        let process = open(own).unwrap();
        let range = Reservation::new(PAGES * PAGE_BYTES, PAGE_BYTES).unwrap();
        range.advise_backing(0..PAGES * PAGE_BYTES, Backing::BasePages);
        range.exclude_from_fork().unwrap();
        range.populate(0..PAGES * PAGE_BYTES).unwrap();
        let start = range.base().as_ptr() as u64;
        let pages: Vec<_> = (0..PAGES as u64).map(|page| start + page * PAGE_BYTES as u64).collect();
        // Nothing is mapped there.
        let far = 1 << 46;
        let is_used = |page: usize| page.is_multiple_of(7) || page > 500;
        let expected = |page| if is_used(page) { PageUse::Used } else { PageUse::Unused };
        eventually(|| {
            assert_eq!(forget(process.as_fd(), &pages).unwrap(), []);
            for page in (0..PAGES).filter(|page| is_used(*page)) {
                // SAFETY: the page is populated, and the reservation lives.
                unsafe { range.base().as_ptr().add(page * PAGE_BYTES).cast_const().read_volatile() };
            }
            // More runs and more pages than one call takes, with missing tables in between.
            let scattered =
                (0..PAGES).rev().chain((0..PAGES).step_by(2)).chain((0..4).flat_map(|_| 0..PAGES));
            let addresses: Vec<_> =
                scattered.clone().flat_map(|page| [pages[page], far + ((page as u64) << 21)]).collect();
            let of_both = scattered.flat_map(|page| [expected(page), PageUse::Unknown]);
            bits.look(own, &pages).unwrap().into_iter().eq((0..PAGES).map(expected))
                && bits.look(own, &pages.repeat(4)).unwrap() == bits.look(own, &pages).unwrap().repeat(4)
                && bits.look(own, &addresses).unwrap().into_iter().eq(of_both)
        });
    }

    /// Tries again for a while: the kernel skips a page that it holds at the moment, or that another test's
    /// fork shares.
    fn eventually(mut holds: impl FnMut() -> bool) {
        let held = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            holds()
        });
        assert!(held);
    }

    #[test]
    fn pages_behind_one_that_is_refused_are_forgotten() {
        let Ok(bits) = AccessedBits::prepare() else { return };
        let range = Reservation::new(8 * PAGE_BYTES, PAGE_BYTES).unwrap();
        range.advise_backing(0..8 * PAGE_BYTES, Backing::BasePages);
        range.exclude_from_fork().unwrap();
        range.populate(0..8 * PAGE_BYTES).unwrap();
        let start = range.base().as_ptr() as u64;
        let pages: Vec<_> = (0..8).map(|page| start + page * PAGE_BYTES as u64).collect();
        // SAFETY: the page is in the reservation, and its bytes stay.
        unsafe { rustix::mm::mlock(pages[2] as *mut _, PAGE_BYTES).unwrap() };
        let own = std::process::id();
        eventually(|| {
            assert_eq!(forget(open(own).unwrap().as_fd(), &pages).unwrap(), [pages[2]]);
            let seen = bits.look(own, &pages).unwrap();
            (0..8).all(|page| (seen[page] == PageUse::Used) == (page == 2))
        });
    }

    #[test]
    fn a_process_that_has_ended_is_not_found() {
        let Ok(bits) = AccessedBits::prepare() else { return };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let outcome = bits.look(pid, &[0x1000]);
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
