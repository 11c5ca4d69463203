//! `--device`: the place for pages, and the checks before anything is written there.

use std::env;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use octavo::io::SwapArea;
use octavo_command::failure::Failure;
use rustix::fs::{OFlags, statfs, statvfs};

use crate::table;

/// File systems in memory (linux/magic.h).
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// The place for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A file without a name in this directory.
    TemporaryIn(PathBuf),
    /// A file without a name whose blocks have all been written, by the path of its descriptor.
    Written { path: PathBuf, folder: PathBuf },
    /// A file of this name, which is removed afterwards.
    File(PathBuf),
    /// A block device, whose contents are lost. All sides write to it, and leave signatures there.
    Block(PathBuf),
    /// Memory, where transfers complete at once.
    Ram,
}

impl DeviceChoice {
    /// Returns the device that `--device` names, or a temporary file in $TMPDIR or /var/tmp.
    ///
    /// # Errors
    /// Returns a sentence if the device is missing, is really memory, is in use, or holds data. With `force`,
    /// a block device may hold data.
    pub fn of(argument: Option<&str>, force: bool) -> Result<Self, Failure> {
        let path = match argument {
            None => env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from),
            Some("ram") => return Ok(Self::Ram),
            Some(path) => PathBuf::from(path),
        };
        let refuse = |why: &str| Err(Failure::Said(format!("--device {}: {why}", path.display())));
        let Ok(metadata) = fs::metadata(&path) else {
            let folder = match path.parent() {
                Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
                Some(parent) => parent,
                None => return refuse("no such device"),
            };
            if folder == Path::new("/dev") {
                return refuse("no such device");
            }
            if !folder.is_dir() {
                return refuse(
                    "neither it nor its directory exists; name a file to be made in a directory that exists",
                );
            }
            refuse_memory(&path, folder)?;
            return Ok(Self::File(path));
        };
        if metadata.file_type().is_block_device() {
            // Opened exclusively: fails if the device is mounted or used for swap.
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(OFlags::EXCL.bits() as i32)
                .open(&path);
            opened.map_err(|error| {
                Failure::system(format!("--device {} cannot be used", path.display()), error)
            })?;
            SwapArea::block_device(&path).overwrite(force).check()?;
            return Ok(Self::Block(path));
        }
        if metadata.is_dir() {
            refuse_memory(&path, &path)?;
            return Ok(Self::TemporaryIn(path));
        }
        if !metadata.is_file() {
            return refuse("it is no file, directory or block device");
        }
        refuse("this file exists, and would be overwritten; name one to be made, or a directory")
    }

    /// Returns the folder for the files of the kernel's side and of the bare disk, which are on the same file
    /// system. `None` if there is none.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::TemporaryIn(folder) | Self::Written { folder, .. } => Some(folder),
            Self::File(path) => Some(match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            }),
            Self::Block(_) | Self::Ram => None,
        }
    }

    /// Refuses a size for which the file system has no room.
    pub fn check_room(&self, bytes: u64) -> Result<(), Failure> {
        let Some(folder) = self.folder() else { return Ok(()) };
        let Ok(stat) = statvfs(folder) else { return Ok(()) };
        let room = stat.f_bavail.saturating_mul(stat.f_frsize);
        if bytes <= room {
            return Ok(());
        }
        Err(Failure::Said(format!(
            "this takes {} in {}, and {} are free there; give a smaller --total, or --device somewhere else",
            table::bytes(bytes),
            folder.display(),
            table::bytes(room)
        )))
    }

    /// Describes the device for people.
    pub fn describe(&self) -> String {
        match self {
            Self::TemporaryIn(folder) => format!("a temporary file in {}", folder.display()),
            Self::Written { folder, .. } => {
                format!("a temporary file in {}, written in full", folder.display())
            }
            Self::File(path) | Self::Block(path) => path.display().to_string(),
            Self::Ram => "memory".into(),
        }
    }
}

fn refuse_memory(path: &Path, folder: &Path) -> Result<(), Failure> {
    let is_memory = statfs(folder).is_ok_and(|stat| MEMORY_FILE_SYSTEMS.contains(&stat.f_type));
    if !is_memory {
        return Ok(());
    }
    Err(Failure::Said(format!(
        "--device {} lies on a tmpfs, which is memory itself; choose a place on a disk, or --device ram to measure \
         without a device",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(argument: &str) -> String {
        DeviceChoice::of(Some(argument), false).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_swapped_to_is_refused_in_a_sentence() {
        assert!(complaint("/dev/no-such-disk").contains("no such device"));
        assert!(complaint("/nowhere/at/all").contains("neither it nor its directory exists"));
        assert!(complaint("/dev/null").contains("no file, directory or block device"));
        assert!(complaint("/dev/shm").contains("tmpfs"));
        assert!(complaint("/dev/shm/swap").contains("tmpfs"));
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        assert!(complaint(file.path().to_str().unwrap()).contains("would be overwritten"));
    }

    #[test]
    fn a_file_a_directory_and_memory_are_told_apart() {
        assert_eq!(DeviceChoice::of(Some("ram"), false).unwrap(), DeviceChoice::Ram);
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let name = folder.path().to_str().unwrap();
        assert_eq!(DeviceChoice::of(Some(name), false).unwrap(), DeviceChoice::TemporaryIn(name.into()));
        let file = DeviceChoice::of(Some(&format!("{name}/swap")), false).unwrap();
        assert_eq!(file, DeviceChoice::File(folder.path().join("swap")));
        assert_eq!(file.folder(), Some(folder.path()));
        assert!(file.check_room(u64::MAX).unwrap_err().to_string().contains("are free there"));
        file.check_room(4096).unwrap();
    }
}
