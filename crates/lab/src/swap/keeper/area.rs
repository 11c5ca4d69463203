//! A swap area for the kernel: a file with all of its blocks, a block device, or compressed memory.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use octavo_command::failure::Failure;
use octavo_measure::direct::write_in_full;
use octavo_platform::kernel_swap;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use serde::{Deserialize, Serialize};

use super::note::{KeeperNote, Step, failed};

const ZRAM_CONTROL: &str = "/sys/class/zram-control";

/// The kind of an area.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AreaChoice {
    /// A file that the keeper makes in this directory.
    FileIn(PathBuf),
    /// This block device, whose contents are lost.
    Device(PathBuf),
    /// Compressed memory, by this algorithm if the machine has it.
    Zram { algorithm: String },
}

/// Makes the area, and returns the path by which it is switched on and off.
pub fn make(note: &mut KeeperNote, choice: &AreaChoice, bytes: u64) -> Result<PathBuf, Failure> {
    match choice {
        AreaChoice::FileIn(folder) => {
            let path = folder.join(format!(".octavo-kernel-swap-{}", std::process::id()));
            note.add(Step::SwapFile { path: path.clone() })?;
            make_file(&path, bytes).map_err(|error| failed("make the kernel's swap file", &path, error))?;
            Ok(path)
        }
        AreaChoice::Device(path) => {
            note.add(Step::SwapDevice { path: path.clone() })?;
            Ok(path.clone())
        }
        AreaChoice::Zram { algorithm } => make_zram(note, algorithm, bytes),
    }
}

/// Writes the header of the area and switches it on.
pub fn switch_on(path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let written = file.and_then(|file| {
        let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        kernel_swap::format(&file, bytes)
    });
    written.map_err(|error| failed("prepare the kernel's swap on", path, error))?;
    kernel_swap::swap_on(path).map_err(|error| {
        Failure::system(
            format!(
                "the kernel does not swap to {}; give --device a directory on ext4 or xfs",
                path.display()
            ),
            error,
        )
    })
}

/// The most tries to switch an area off, a tenth of a second apart.
const SWITCH_OFF_TRIES: u32 = 100;

/// Switches the area off, if it is on. The kernel gives up on a signal, or if memory is short for a moment.
/// Then the keeper asks again.
pub fn switch_off(path: &Path) -> Result<(), Failure> {
    for last in (0..SWITCH_OFF_TRIES).map(|tried| tried + 1 == SWITCH_OFF_TRIES) {
        match kernel_swap::swap_off(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                return Ok(());
            }
            Err(error)
                if !last
                    && matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory | io::ErrorKind::ResourceBusy
                    ) =>
            {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => return Err(failed("switch off the kernel's swap on", path, error)),
            Ok(()) => return Ok(()),
        }
    }
    Ok(())
}

/// Makes a file and writes all of its blocks, so that the kernel finds no unallocated block.
fn make_file(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    // btrfs swaps only to files that are not copied on write. Other file systems have no such flag.
    if let Ok(flags) = ioctl_getflags(&file) {
        let _ = ioctl_setflags(&file, flags | IFlags::NOCOW);
    }
    write_in_full(&file, bytes)
}

fn make_zram(note: &mut KeeperNote, algorithm: &str, bytes: u64) -> Result<PathBuf, Failure> {
    let add = Path::new(ZRAM_CONTROL).join("hot_add");
    let number = fs::read_to_string(&add).map_err(|error| {
        Failure::system(
            "--against zram, and the kernel's side of --device ram, swap to compressed memory, and this machine has no \
             zram (try modprobe zram; instead of --device ram also brd and --device /dev/ram0)",
            error,
        )
    })?;
    let number: u32 =
        number.trim().parse().map_err(|_| Failure::Said(format!("{} answers no number", add.display())))?;
    note.add(Step::Zram { number })?;
    let settings = PathBuf::from(format!("/sys/block/zram{number}"));
    let known = fs::read_to_string(settings.join("comp_algorithm")).unwrap_or_default();
    if known.split([' ', '[', ']', '\n']).any(|name| name == algorithm) {
        let file = settings.join("comp_algorithm");
        fs::write(&file, algorithm).map_err(|error| failed("set", &file, error))?;
    }
    let size = settings.join("disksize");
    fs::write(&size, bytes.to_string()).map_err(|error| failed("set", &size, error))?;
    Ok(PathBuf::from(format!("/dev/zram{number}")))
}

/// Switches off swap to a zram device, frees its memory, and removes it.
pub fn remove_zram(number: u32) -> Result<(), Failure> {
    let settings = PathBuf::from(format!("/sys/block/zram{number}"));
    if !settings.exists() {
        return Ok(());
    }
    switch_off(Path::new(&format!("/dev/zram{number}")))?;
    let remove = Path::new(ZRAM_CONTROL).join("hot_remove");
    let give_back =
        || fs::write(settings.join("reset"), "1").and_then(|()| fs::write(&remove, number.to_string()));
    let mut removed = give_back();
    // A program that watches devices may have it open for a moment.
    for _ in 0..100 {
        if removed.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        removed = give_back();
    }
    removed.map_err(|error| failed("give back", &settings, error))
}

/// The files in which a zram device counts its memory, which no control group is charged for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZramMemory {
    figures: PathBuf,
    forget: PathBuf,
}

impl ZramMemory {
    pub fn of(device: &Path) -> Self {
        let settings = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
        Self { figures: settings.join("mm_stat"), forget: settings.join("mem_used_max") }
    }

    /// Resets the peak.
    pub fn begin(&self) {
        // If the kernel refuses, the peak is the largest of all runs.
        let _ = fs::write(&self.forget, "0");
    }

    /// Returns the memory that the device uses.
    pub fn used_bytes(&self) -> Option<u64> {
        self.figure(2)
    }

    /// Returns the most memory that the device has used since `begin`.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.figure(4)
    }

    /// Reads a figure of mm_stat: the third is mem_used_total, and the fifth mem_used_max.
    fn figure(&self, place: usize) -> Option<u64> {
        fs::read_to_string(&self.figures).ok()?.split_whitespace().nth(place)?.parse().ok()
    }
}

/// Names the kernel's compression algorithm for people.
pub fn zram_algorithm(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let text = fs::read_to_string(format!("/sys/block/{name}/comp_algorithm")).unwrap_or_default();
    text.split(['[', ']']).nth(1).unwrap_or("unknown").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_in_full() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("area");
        make_file(&path, (1 << 20) + 8192).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), (1 << 20) + 8192);
        assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512 >= metadata.len());
    }
}
