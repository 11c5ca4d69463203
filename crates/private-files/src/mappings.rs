//! The mappings of a process, and which of them may be converted.

use std::io;
use std::ops::Range;

use octavo_platform::proc_text;

/// The flags that plain private memory may have, by the kernel's names: readable, writable, what it may
/// become, accounted or not, soft-dirty, and with or without huge pages. Mapping a file over a range loses
/// all others.
const PLAIN: [&str; 10] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd", "hg", "nh"];
/// A flag of converted memory alone: the kernel reads single pages.
const RANDOM: &str = "rr";

/// What a mapping shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Private memory without a file.
    Anonymous,
    /// The file of pages, from this offset.
    Ours(u64),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) what: What,
    /// `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    pub(crate) protection: u64,
}

impl Mapping {
    /// Returns the part of the mapping inside a range.
    pub(crate) fn within(&self, range: &Range<u64>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        let what = match self.what {
            What::Ours(offset) => What::Ours(offset + (start.saturating_sub(self.start))),
            what => what,
        };
        (start < end).then(|| Self { start, end, what, ..self.clone() })
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.what, What::Ours(_))
    }
}

/// Reads the mappings of a process, in the order of their addresses. `ours` is the name of the file of pages.
///
/// # Errors
/// Returns the kernel's error if the process has ended or may not be looked at.
pub(crate) fn of(pid: u32, ours: &str) -> io::Result<Vec<Mapping>> {
    let text = proc_text::read(pid, "maps")?;
    Ok(text.lines().filter_map(|line| parse(line, ours)).collect())
}

/// Reads the mappings that may be converted or cleaned. Costs about 14 ms per GiB.
///
/// # Errors
/// Same as [`of`].
pub(crate) fn plain_of(pid: u32, ours: &str) -> io::Result<Vec<Mapping>> {
    Ok(plain_in(&proc_text::read(pid, "smaps")?, ours))
}

fn plain_in(smaps: &str, ours: &str) -> Vec<Mapping> {
    let (mut last, mut found) = (None, Vec::new());
    for line in smaps.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) => found.extend(last.take().filter(|mapping| is_plain(mapping, flags))),
            None if line
                .as_bytes()
                .first()
                .is_some_and(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase()) =>
            {
                last = parse(line, ours);
            }
            // A locked range, or one with a protection key, stays as it is.
            None if has_a_value(line, "Locked:") || has_a_value(line, "ProtectionKey:") => last = None,
            None => {}
        }
    }
    found
}

fn has_a_value(line: &str, field: &str) -> bool {
    let value = line.strip_prefix(field).map(|value| value.trim().trim_end_matches(" kB"));
    value.is_some_and(|value| value != "0")
}

fn is_plain(mapping: &Mapping, flags: &str) -> bool {
    let is_allowed = |flag: &str| PLAIN.contains(&flag) || mapping.is_ours() && flag == RANDOM;
    mapping.what != What::Other
        && mapping.protection & libc::PROT_READ as u64 != 0
        && flags.split_ascii_whitespace().all(is_allowed)
}

/// Parses a line of `maps`, or the first line of a mapping in `smaps`.
fn parse(line: &str, ours: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions, offset) = (fields.next()?, fields.next()?.as_bytes(), fields.next()?);
    let (device, inode) = (fields.next()?, fields.next()?);
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let (start, end) = range.split_once('-')?;
    let is_private = permissions.get(3) == Some(&b'p');
    let what = match fields.next() {
        _ if !is_private => What::Other,
        _ if ours.split_once(' ') == Some((device, inode)) => What::Ours(hex(offset)?),
        None | Some("[heap]") if inode == "0" => What::Anonymous,
        Some(name) if inode == "0" && name.starts_with("[anon:") => What::Anonymous,
        _ => What::Other,
    };
    let bit = |index: usize, letter: u8, bit: i32| if permissions[index] == letter { bit as u64 } else { 0 };
    let protection =
        bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC);
    Some(Mapping { start: hex(start)?, end: hex(end)?, what, protection })
}

/// Returns why no memory of a process may be converted, if that is so: a device may write to its pages
/// without a call that could be seen, or its memory is locked.
pub(crate) fn why_not(pid: u32) -> Option<&'static str> {
    let status = proc_text::read(pid, "status").unwrap_or_default();
    if status.lines().any(|line| has_a_value(line, "VmLck:")) {
        return Some("it has locked memory");
    }
    if status.lines().any(|line| has_a_value(line, "VmPin:")) {
        return Some("a device has pinned its memory");
    }
    let maps = proc_text::read(pid, "maps").unwrap_or_default();
    if maps.lines().any(|line| line.ends_with("/[aio]") || line.contains("/[aio] ")) {
        return Some("it uses asynchronous I/O of the kernel (aio)");
    }
    const DEVICES: [&str; 6] =
        ["anon_inode:[io_uring]", "/dev/infiniband", "/dev/nvidia", "/dev/vfio", "/dev/kvm", "/dev/vhost"];
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let is_device = |name: &std::path::PathBuf| {
        name.to_str().is_some_and(|name| DEVICES.iter().any(|device| name.starts_with(device)))
    };
    names.any(|name| is_device(&name)).then_some("a device, or io_uring, may write to its memory at any time")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "fe:00 77";

    #[test]
    fn kinds_of_mappings_are_told_apart() {
        let what = |line| parse(line, OURS).unwrap().what;
        assert_eq!(what("1000-2000 rw-p 00000000 00:00 0 "), What::Anonymous);
        assert_eq!(what("1000-2000 rw-p 00000000 00:00 0    [heap]"), What::Anonymous);
        assert_eq!(what("1000-2000 rw-p 00000000 00:00 0    [anon:pool]"), What::Anonymous);
        assert_eq!(what("1000-2000 rw-p 00000000 00:00 0    [stack]"), What::Other);
        assert_eq!(what("1000-2000 rw-p 00003000 fe:00 77   /x/#77 (deleted)"), What::Ours(0x3000));
        assert_eq!(what("1000-2000 rw-s 00003000 fe:00 77   /x/#77 (deleted)"), What::Other);
        assert_eq!(what("1000-2000 rw-p 00003000 fe:00 78   /x/y"), What::Other);
    }

    #[test]
    fn only_plain_memory_may_be_converted() {
        let plain = |flags: &str, more: &str| {
            let text = format!("1000-2000 rw-p 0 00:00 0 \nLocked: 0 kB\n{more}VmFlags: {flags}\n");
            plain_in(&text, OURS).len() == 1
        };
        assert!(plain("rd wr mr mw me ac sd ", "") && plain("rd mr mw me nr hg", ""));
        for flag in ["ex", "sh", "lo", "io", "dc", "dd", "wf", "gd", "um", "uw", "mg", "ht", "ss", "sl", "rr"]
        {
            assert!(!plain(&format!("rd wr {flag}"), ""), "{flag}");
        }
        assert!(!plain("rd wr", "Locked:      4 kB\n") && !plain("rd wr", "ProtectionKey:  1\n"));
        assert!(
            plain_in("1000-2000 ---p 0 00:00 0 \nVmFlags: mr mw me\n", OURS).is_empty(),
            "nothing to read"
        );
        let ours = "1000-2000 rw-p 0 fe:00 77 /x\nVmFlags: rd wr mr mw me nr rr\n";
        assert_eq!(plain_in(ours, OURS).len(), 1);
    }

    #[test]
    fn a_part_of_a_mapping_keeps_its_place_in_the_file() {
        let mapping = parse("4000-8000 rw-p 00010000 fe:00 77", OURS).unwrap();
        let part = mapping.within(&(0x5000..0x10000)).unwrap();
        assert_eq!((part.start, part.end, part.what), (0x5000, 0x8000, What::Ours(0x11000)));
        assert_eq!(mapping.within(&(0x8000..0x9000)), None);
    }
}
