//! The bare device, past the page cache, with requests like those of the other sides.
//!
//! If the order is sequential, this side moves blocks of 1 MiB, several at a time. If the order is random, it
//! has as many threads as the loads of the other sides. Each reads 4 KiB at a time, and waits for its own
//! read. If the loads ask for pages ahead, there are as many more threads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use octavo_command::failure::Failure;
use octavo_measure::direct::{AlignedBytes, nameless_file, write_in_full};
use octavo_measure::random::Random;
use rustix::fs::OFlags;

use super::data::{Data, PAGE_BYTES};
use super::device::DeviceChoice;
use super::plan::{Length, TaskPattern, TaskPlan};
use crate::gate::all_at_once;
use crate::worker::now_ns;

const BLOCK_BYTES: u64 = 1 << 20;
/// Blocks in flight at a time, if accesses are in order.
const DEPTH: u32 = 8;
/// The most threads that wait.
const MOST_THREADS: u32 = 512;

/// Makes a file without a name whose blocks are all allocated. A file system writes to those faster than to
/// new ones, and the kernel swaps only to such files.
pub(super) fn written_file(folder: &Path, bytes: u64) -> io::Result<File> {
    let file = nameless_file(folder)?;
    write_in_full(&file, bytes)?;
    Ok(file)
}

/// A file on the device, or the device itself.
#[derive(Debug)]
pub struct DiskSide {
    file: File,
    bytes: u64,
}

/// The work of the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWork {
    pub operations: u64,
    pub bytes: u64,
    pub seconds: f64,
}

impl DiskSide {
    /// Makes a file of `bytes` without a name, with all of its blocks, or takes the block device.
    pub fn set_up(device: &DeviceChoice, bytes: u64) -> Result<Self, Failure> {
        let cannot = |error| Failure::system(format!("cannot measure {} itself", device.describe()), error);
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        match device {
            DeviceChoice::Ram => Err(Failure::Said(
                "--against disk measures a device, and --device ram is none; name a file, directory or block device"
                    .into(),
            )),
            DeviceChoice::Block(path) => {
                let direct = OFlags::DIRECT.bits() as i32;
                let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(path).map_err(cannot)?;
                let whole = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| cannot(e.into()))?;
                Ok(Self { file, bytes: bytes.min(whole / BLOCK_BYTES * BLOCK_BYTES).max(BLOCK_BYTES) })
            }
            DeviceChoice::TemporaryIn(_) | DeviceChoice::File(_) | DeviceChoice::Written { .. } => {
                let folder = device.folder().unwrap_or("/var/tmp".as_ref());
                Ok(Self { file: written_file(folder, bytes).map_err(cannot)?, bytes })
            }
        }
    }

    /// Sends the device the requests that correspond to the command's accesses.
    pub fn run(&self, tasks: u32, plan: &TaskPlan) -> Result<DeviceWork, Failure> {
        match plan.pattern {
            TaskPattern::WriteSequential | TaskPattern::WriteRandom => self.in_order(true),
            TaskPattern::ReadSequential => self.in_order(false),
            TaskPattern::ReadRandom => {
                let threads = tasks.saturating_mul(plan.threads).saturating_mul(plan.prefetch.max(1));
                self.at_random(threads.clamp(1, MOST_THREADS), plan)
            }
        }
    }

    fn in_order(&self, write: bool) -> Result<DeviceWork, Failure> {
        let next = AtomicU64::new(0);
        self.time(DEPTH, |thread| {
            let mut block = AlignedBytes::new(BLOCK_BYTES as usize);
            fill(&mut block, u64::from(thread));
            let mut done = 0;
            loop {
                // Relaxed: any thread may take any block.
                let at = next.fetch_add(BLOCK_BYTES, Ordering::Relaxed);
                if at >= self.bytes {
                    return Ok((done, done * BLOCK_BYTES));
                }
                match write {
                    true => self.file.write_all_at(block.as_slice(), at)?,
                    false => self.file.read_exact_at(block.as_mut_slice(), at)?,
                }
                done += 1;
            }
        })
    }

    fn at_random(&self, threads: u32, plan: &TaskPlan) -> Result<DeviceWork, Failure> {
        let pages = self.bytes / PAGE_BYTES as u64;
        let loads = match plan.length {
            // The number of reads equals the number of loads of the other sides.
            Length::Loads(loads) => (loads * u64::from(plan.threads)).div_ceil(u64::from(threads)).max(1),
            Length::Nanoseconds(_) => u64::MAX,
        };
        self.time(threads, |thread| {
            let mut page = AlignedBytes::new(PAGE_BYTES);
            let mut random = Random::new(plan.seed ^ u64::from(thread));
            let deadline_ns = match plan.length {
                Length::Loads(_) => u64::MAX,
                Length::Nanoseconds(ns) => now_ns().saturating_add(ns),
            };
            let mut done = 0;
            while done < loads && now_ns() < deadline_ns {
                let at = random.below(pages as usize) * PAGE_BYTES;
                self.file.read_exact_at(page.as_mut_slice(), at as u64)?;
                done += 1;
            }
            Ok((done, done * PAGE_BYTES as u64))
        })
    }

    fn time(
        &self,
        threads: u32,
        one: impl Fn(u32) -> io::Result<(u64, u64)> + Sync,
    ) -> Result<DeviceWork, Failure> {
        let timed = |thread| {
            let start_ns = now_ns();
            let moved = one(thread).map_err(|error| Failure::system("the bare device fails", error))?;
            Ok((start_ns, now_ns(), moved))
        };
        let all = all_at_once(0..threads, timed, None)?;
        let start_ns = all.iter().map(|(start_ns, ..)| *start_ns).min().unwrap_or(0);
        let end_ns = all.iter().map(|(_, end_ns, _)| *end_ns).max().unwrap_or(0);
        Ok(DeviceWork {
            operations: all.iter().map(|(.., (operations, _))| operations).sum(),
            bytes: all.iter().map(|(.., (_, bytes))| bytes).sum(),
            seconds: end_ns.saturating_sub(start_ns).max(1) as f64 / 1e9,
        })
    }
}

/// Fills a block with bytes that no device can compress.
fn fill(block: &mut AlignedBytes, seed: u64) {
    for (number, page) in block.as_mut_slice().chunks_exact_mut(PAGE_BYTES).enumerate() {
        let (words, _) = page.as_chunks_mut::<8>();
        Data::Random.page(seed, number as u64).each(|index, word| words[index] = word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::plan::small;
    use super::*;

    #[test]
    fn the_device_moves_what_it_is_asked_to() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = DiskSide::set_up(&DeviceChoice::TemporaryIn(folder.path().into()), 3 << 20).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
        for pattern in [TaskPattern::WriteSequential, TaskPattern::ReadSequential] {
            let moved = disk.run(2, &small(pattern)).unwrap();
            assert_eq!((moved.operations, moved.bytes), (3, 3 << 20));
        }
        let moved = disk.run(2, &small(TaskPattern::ReadRandom)).unwrap();
        assert_eq!(moved.operations, 200);
    }

    #[test]
    fn memory_is_no_disk() {
        assert!(DiskSide::set_up(&DeviceChoice::Ram, 1 << 20).unwrap_err().to_string().contains("is none"));
    }
}
