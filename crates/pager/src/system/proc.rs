//! The data of a process in `/proc`: its memory, its mappings, its children.
//!
//! A look at a process's memory costs one system call on a kept descriptor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use octavo::PAGE_BYTES;
use octavo_platform::proc_text;
pub(crate) use octavo_platform::proc_text::name;
use octavo_platform::smaps::flagged;
use octavo_platform::threads::{of_process, robust_list, stat_field};
use octavo_platform::usage;
use octavo_platform::usage::possible_cpus;
use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::system::sysinfo;

/// The memory of a process, read through a descriptor that stays open.
#[derive(Debug)]
pub(crate) struct Statm(File);

/// Memory in use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryInUse {
    /// Private memory without a file.
    pub(crate) anonymous: u64,
    /// Pages of files, and shared memory.
    pub(crate) others: u64,
}

impl Statm {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/statm")).map(Self)
    }

    /// Reads how much memory the process has. A process that has ended has none.
    pub(crate) fn read(&self) -> MemoryInUse {
        let mut text = [0; 128];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        let mut fields = text[..len].split(|byte| *byte == b' ').map(number);
        let (_, resident, others) = (fields.next(), fields.next(), fields.next());
        let (resident, others) = (resident.unwrap_or(0), others.unwrap_or(0));
        let page = PAGE_BYTES as u64;
        MemoryInUse { anonymous: resident.saturating_sub(others) * page, others: others * page }
    }
}

/// Memory of a process that cannot be paged, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixed {
    /// The pages of shared memory that the process maps.
    pub(crate) shared: u64,
    /// The page tables of the process.
    pub(crate) tables: u64,
}

/// The kernel's detailed figures of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatusFigures {
    pub(crate) fixed: Fixed,
    /// The memory that the process has locked, present or not, in bytes.
    pub(crate) locked: u64,
}

/// The kernel's detailed figures of a process, read through a descriptor that stays open.
#[derive(Debug)]
pub(crate) struct StatusFile(File);

impl StatusFile {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/status")).map(Self)
    }

    /// Reads the figures. A process that has ended has none. Costs about 15 µs.
    pub(crate) fn read(&self) -> StatusFigures {
        let mut text = [0; 4096];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        parse_status(&text[..len])
    }
}

/// Returns how many bytes a process has locked, present or not.
pub(crate) fn locked_bytes(pid: u32) -> u64 {
    StatusFile::of(pid).map_or(0, |status| status.read().locked)
}

fn parse_status(status: &[u8]) -> StatusFigures {
    let mut told = StatusFigures::default();
    for line in status.split(|byte| *byte == b'\n') {
        if let Some(kibibytes) = line.strip_prefix(b"RssShmem:") {
            told.fixed.shared = number(kibibytes) << 10;
        } else if let Some(kibibytes) = line.strip_prefix(b"VmPTE:") {
            told.fixed.tables = number(kibibytes) << 10;
        } else if let Some(kibibytes) = line.strip_prefix(b"VmLck:") {
            told.locked = number(kibibytes) << 10;
        }
    }
    told
}

fn number(digits: &[u8]) -> u64 {
    digits.iter().filter(|byte| byte.is_ascii_digit()).fold(0, |n, byte| n * 10 + u64::from(byte - b'0'))
}

/// Returns the number of the machine's newest process or thread. The number changes with every new process or
/// thread.
pub(crate) fn newest() -> u32 {
    static LOAD: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/loadavg").ok());
    let mut text = [0; 128];
    let len = LOAD.as_ref().and_then(|load| load.read_at(&mut text, 0).ok()).unwrap_or(0);
    text[..len].split(|byte| *byte == b' ').next_back().map_or(0, number) as u32
}

/// Returns whether a number is a process's own, and not the number of one of its other threads.
pub(crate) fn is_process(pid: u32) -> bool {
    Pid::from_raw(pid as i32).is_some_and(|pid| pidfd_open(pid, PidfdFlags::empty()).is_ok())
}

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    pub(crate) is_executable: bool,
    pub(crate) is_private: bool,
    /// The file or shared memory that it maps, if any, and the offset in the file at which it begins.
    pub(crate) file: Option<FileId>,
    pub(crate) offset: u64,
    pub(crate) name: String,
}

/// The file of a mapping, by the numbers of its device and of its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl ProcessMapping {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

#[cfg(test)]
impl FileId {
    pub(crate) fn numbered(inode: u64) -> Self {
        Self { device: (8, 1), inode }
    }
}

/// Reads the mappings of a process, in the order of their addresses.
///
/// # Errors
/// Returns the kernel's error if the process has ended or may not be looked at.
pub(crate) fn mappings(pid: u32) -> io::Result<Vec<ProcessMapping>> {
    Ok(parse_mappings(&proc_text::read(pid, "maps")?))
}

fn parse_mappings(text: &str) -> Vec<ProcessMapping> {
    text.lines().filter_map(parse_mapping).collect()
}

/// Returns whether a process still has memory. A process that is exiting has none.
pub(crate) fn has_memory(pid: u32) -> bool {
    mappings(pid).is_ok_and(|mappings| !mappings.is_empty())
}

fn parse_mapping(line: &str) -> Option<ProcessMapping> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions, offset, device, inode) =
        (fields.next()?, fields.next()?.as_bytes(), fields.next()?, fields.next()?, fields.next()?);
    let (Range { start, end }, (major, minor)) = (parse_range(range)?, device.split_once(':')?);
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let file = FileId { device: (hex(major)? as u32, hex(minor)? as u32), inode: number(inode.as_bytes()) };
    Some(ProcessMapping {
        start,
        end,
        is_readable: permissions[0] == b'r',
        is_writable: permissions[1] == b'w',
        is_executable: permissions[2] == b'x',
        is_private: permissions[3] == b'p',
        file: (file.device != (0, 0) || file.inode != 0).then_some(file),
        offset: hex(offset)?,
        name: fields.next().unwrap_or_default().to_owned(),
    })
}

fn parse_range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(hex(start)?..hex(end)?)
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: u32,
    /// The faults of all threads of the process so far.
    pub(crate) faults: u64,
    /// The faults of the process, and of children that it has reaped, that waited for a disk.
    pub(crate) disk_faults: u64,
    pub(crate) threads: u64,
    /// The CPU time of the process, and of children that it has reaped, in ticks of the user-visible clock.
    pub(crate) cpu_ticks: u64,
    /// The start time of the process, in ticks of the machine's clock. `exec` does not change it.
    pub(crate) start: u64,
    /// The start of the process's stack. It identifies a program: `exec` changes it, and a fork's child has
    /// the same as its parent.
    pub(crate) stack: u64,
}

impl Stat {
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.cpu_ticks as f64 / clock_ticks_per_second() as f64
    }
}

/// Returns the result of a read from a process, or `None` if the process has ended or may not be looked at.
///
/// # Errors
/// Returns the kernel's error if this process or the machine has no descriptors left, or no memory for them.
/// Such an error says nothing about the process.
pub(crate) fn answer<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error)
            if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) =>
        {
            Err(error)
        }
        read => Ok(read.ok()),
    }
}

/// The [`Stat`] of a process, read through a descriptor that stays open.
#[derive(Debug)]
pub(crate) struct StatFile(File);

impl StatFile {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/stat")).map(Self)
    }

    /// Reads it. Returns `None` if the process has ended.
    pub(crate) fn read(&self) -> Option<Stat> {
        let mut text = [0; 1024];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        parse_stat(&text[..len])
    }
}

/// Reads the [`Stat`] of a process. Returns `None` if it has ended.
///
/// # Errors
/// Returns the kernel's error if descriptors run out.
pub(crate) fn ask(pid: u32) -> io::Result<Option<Stat>> {
    Ok(answer(StatFile::of(pid))?.and_then(|file| file.read()))
}

/// Reads the [`Stat`] of a process. Returns `None` if it has ended, or cannot be read.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    ask(pid).ok().flatten()
}

fn parse_stat(text: &[u8]) -> Option<Stat> {
    let field = |index| stat_field(text, index);
    Some(Stat {
        state: *field(3)?.first()?,
        parent: number(field(4)?) as u32,
        // Both minor and major faults: a fault for which the kernel has waited counts as major, even if the
        // page was in memory.
        faults: number(field(10)?) + number(field(12)?),
        disk_faults: number(field(12)?) + number(field(13)?),
        threads: number(field(20)?),
        cpu_ticks: (14..=17).map(|index| field(index).map(number)).sum::<Option<u64>>()?,
        start: number(field(22)?),
        stack: number(field(28)?),
    })
}

/// Returns the CPU time of a tree: of these processes, and of children that this process has reaped.
pub(crate) fn cpu_seconds(processes: impl Iterator<Item = u32>) -> f64 {
    let living = processes.filter_map(stat).map(|stat| stat.cpu_seconds());
    living.sum::<f64>() + usage::of_children().cpu.as_secs_f64()
}

/// Returns the CPU time of the threads of this process that have this name, which the kernel cuts off after
/// 15 bytes.
pub(crate) fn cpu_seconds_of_own(name: &str) -> f64 {
    let pid = std::process::id();
    let seconds = |thread: u32| {
        let stat = proc_text::read(pid, &format!("task/{thread}/stat")).ok()?;
        if !stat.contains(&format!(" ({name}) ")) {
            return None;
        }
        // Leave out the time of children, which each thread repeats.
        let ticks = |index| stat_field(stat.as_bytes(), index).map(number);
        Some((ticks(14)? + ticks(15)?) as f64 / clock_ticks_per_second() as f64)
    };
    // An empty sum of `f64` is -0.0, which prints its sign.
    threads(pid).unwrap_or_default().into_iter().filter_map(seconds).fold(0.0, |sum, one| sum + one)
}

/// Returns the threads of a process. A process that has ended has none.
///
/// # Errors
/// Returns the kernel's error if descriptors run out.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    Ok(answer(of_process(pid))?.unwrap_or_default())
}

/// Where the kernel may write when threads of a process end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    /// Addresses inside the C library's thread descriptors, which lie at the ends of stacks. The first
    /// thread's is not among them.
    pub(crate) descriptors: Vec<u64>,
    /// The first thread's descriptor, which may lie anywhere.
    pub(crate) first_descriptor: Option<u64>,
    /// The stack pointers of sleeping threads without such a descriptor, by thread.
    pub(crate) stacks: BTreeMap<u32, u64>,
    /// The running threads without such a descriptor, whose stacks are unknown.
    pub(crate) hidden: Vec<u32>,
}

impl Threads {
    /// Asks about all threads of a process. The kernel does not tell the stacks of running threads.
    ///
    /// # Errors
    /// Returns the kernel's error if descriptors run out.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let mut found = Self::default();
        for thread in threads(pid)? {
            if let Some(list) = robust_list(thread) {
                if thread == pid {
                    found.first_descriptor = Some(list);
                } else {
                    found.descriptors.push(list);
                }
            } else if let Some(call) = answer(proc_text::read(pid, &format!("task/{thread}/syscall")))? {
                match parse_stack(&call) {
                    Some(stack) => drop(found.stacks.insert(thread, stack)),
                    None => found.hidden.push(thread),
                }
            }
        }
        Ok(found)
    }
}

/// Parses `/proc/PID/syscall`. The last two fields are the stack pointer and the program counter. For a
/// running thread, there is only one field.
fn parse_stack(call: &str) -> Option<u64> {
    let pointer = call.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

/// A process's shares of the pages that it maps, in bytes: a page that two processes map counts half for
/// each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) anonymous: u64,
    pub(crate) shared: u64,
}

/// Returns the shares of a process, or `None` if it has ended or may not be looked at. Costs about 14 ms per
/// GiB.
pub(crate) fn shares(pid: u32) -> Option<Shares> {
    parse_shares(&proc_text::read(pid, "smaps_rollup").ok()?)
}

fn parse_shares(rollup: &str) -> Option<Shares> {
    let field = |name| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        line.map(|kibibytes| number(kibibytes.as_bytes()) << 10)
    };
    Some(Shares { anonymous: field("Pss_Anon:")?, shared: field("Pss_Shmem:")? })
}

/// Returns an upper bound of the shared memory of the whole machine, in bytes. Processes outside of the tree
/// count, too.
pub(crate) fn machine_shared() -> u64 {
    let told = sysinfo();
    told.sharedram.saturating_mul(told.mem_unit.into()) + *LATE_BYTES
}

/// Returns the anonymous memory of the whole machine in bytes, except what CPUs report late. Returns 0 if the
/// kernel does not report it. Costs 2 µs.
pub(crate) fn machine_anonymous() -> u64 {
    static INFO: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/meminfo").ok());
    let mut text = [0; 4096];
    let len = INFO.as_ref().and_then(|info| info.read_at(&mut text, 0).ok()).unwrap_or(0);
    let mut lines = text[..len].split(|byte| *byte == b'\n');
    lines.find_map(|line| line.strip_prefix(b"AnonPages:")).map_or(0, |kibibytes| number(kibibytes) << 10)
}

/// Each CPU counts up to 125 pages before it reports them.
static LATE_BYTES: LazyLock<u64> = LazyLock::new(|| (possible_cpus() * 125 * PAGE_BYTES) as u64);

/// Returns whether a userfaultfd watches memory of a process for missing pages. Costs about 14 ms per GiB.
///
/// # Errors
/// Returns the kernel's error if descriptors run out.
pub(crate) fn is_watched(pid: u32) -> io::Result<bool> {
    let first = flagged(pid, "um").and_then(|mut watched| watched.next().transpose());
    Ok(answer(first)?.flatten().is_some())
}

/// Finds the children of all threads of a process. A process that has ended has none.
///
/// # Errors
/// Returns the kernel's error if descriptors run out. Some children may have been found by then.
pub(crate) fn children(pid: u32, into: &mut Vec<u32>) -> io::Result<()> {
    for thread in threads(pid)? {
        let Some(text) = answer(proc_text::read(pid, &format!("task/{thread}/children")))? else {
            continue;
        };
        into.extend(text.split_ascii_whitespace().map(|pid| number(pid.as_bytes()) as u32));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read_right() {
        let pid = std::process::id();
        let memory = Statm::of(pid).unwrap().read();
        assert!(memory.anonymous > 0 && memory.others > 0, "{memory:?}");
        let stat = stat(pid).unwrap();
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        let here = &raw const memory as u64;
        let maps = mappings(pid).unwrap();
        assert!(maps.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let stack = maps.iter().find(|map| map.start <= here && here < map.end).unwrap();
        assert!(stack.is_writable && stack.is_private && stack.file.is_none() && !stack.is_executable);
        assert!(maps.iter().any(|map| map.file.is_some() && map.is_executable && map.name.starts_with('/')));
    }

    #[test]
    fn threads_that_do_not_exist_took_no_time_and_no_sign() {
        assert_eq!(format!("{:.1}", cpu_seconds_of_own("no such thread")), "0.0");
    }

    #[test]
    fn mappings_are_read_whatever_the_names_of_their_files() {
        let text = "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 r--p 00000000 08:01 7    /a/\u{fffd} b\n3000-5000 rw-p 00000000 00:00 0 [heap]\n";
        let mappings = parse_mappings(text);
        assert_eq!(mappings.iter().map(ProcessMapping::len).collect::<Vec<_>>(), [0x1000, 0x1000, 0x2000]);
        assert!(mappings[1].file.is_some() && mappings[2].name == "[heap]");
    }

    #[test]
    fn page_tables_and_shared_and_locked_memory_are_read_right() {
        let text = b"Name:\tx\nVmLck:\t  8 kB\nVmRSS:\t  900 kB\nRssAnon:\t  100 kB\nRssShmem:\t     640 kB\nVmPTE:\t      56 kB\nVmSwap:\t 1 kB\n";
        let fixed = Fixed { shared: 640 << 10, tables: 56 << 10 };
        assert_eq!(parse_status(text), StatusFigures { fixed, locked: 8 << 10 });
        let own = StatusFile::of(std::process::id()).unwrap().read();
        assert!(own.fixed.tables >= PAGE_BYTES as u64, "{own:?}");
    }

    #[test]
    fn shares_of_both_kinds_are_read_at_once() {
        let text = "1-2 ---p 0 00:00 0 [rollup]\nRss: 9 kB\nPss: 8 kB\nPss_Anon:  3 kB\nPss_File: 1 kB\nPss_Shmem:     5 kB\n";
        assert_eq!(parse_shares(text), Some(Shares { anonymous: 3 << 10, shared: 5 << 10 }));
        assert_eq!(parse_shares(""), None);
        assert!(shares(std::process::id()).unwrap().anonymous > 0);
    }

    #[test]
    fn the_machine_has_all_shared_memory_that_processes_show() {
        use rustix::fs::{MemfdFlags, memfd_create};
        let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(&vec![1; 32 << 20], 0).unwrap();
        assert!(machine_shared() >= 32 << 20);
    }

    #[test]
    fn the_machine_has_the_anonymous_memory_of_this_process() {
        let _own = vec![1_u8; 32 << 20];
        assert!(machine_anonymous() >= 32 << 20);
    }

    #[test]
    fn children_are_found_and_have_ended_when_they_have() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let mut found = Vec::new();
        children(std::process::id(), &mut found).unwrap();
        assert!(found.contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stat(child.id()), None);
    }

    #[test]
    fn memory_is_watched_when_it_is() {
        if octavo_window::Windows::is_allowed() {
            assert!(!is_watched(std::process::id()).unwrap());
            let manager = octavo::Manager::builder().budget_bytes(64 << 20).build().unwrap();
            let windows = octavo_window::Windows::new(&manager).unwrap();
            let _numbers = windows.vec::<u64>(1 << 20).unwrap();
            assert!(is_watched(std::process::id()).unwrap());
        }
    }
}
