//! Files for results, which are written whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that will hold a result. An existing file keeps its contents until the result is complete.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    /// What is not a plain file, such as a pipe or a link. It is opened at once and written directly.
    direct: Option<File>,
}

impl ResultFile {
    /// Checks that the result can be written, before the work that leads to it.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let direct = match aside(path)? {
            // The temporary file is gone again, and returns with the result. Nothing stays if the program is
            // killed in between.
            Some(_) => None,
            None => Some(OpenOptions::new().write(true).create(true).truncate(false).open(path)?),
        };
        Ok(Self { path: path.into(), direct })
    }

    /// Checks that a result can be written later. Pipes and the like are not opened, since their readers
    /// would see it.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn check(path: &Path) -> io::Result<()> {
        aside(path).map(drop)
    }

    /// Returns the path, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the text and a newline: to a temporary file, which then takes the place of the old file.
    ///
    /// # Errors
    /// The error of the file system. A plain file then has its old contents.
    pub fn write(&self, text: &str) -> io::Result<()> {
        if let Some(mut file) = self.direct.as_ref() {
            // A device or a pipe (/dev/stderr, a FIFO) cannot be truncated.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            return writeln!(file, "{text}");
        }
        let Some(mut aside) = aside(&self.path)? else {
            // It was replaced by something else meanwhile.
            return fs::write(&self.path, format!("{text}\n"));
        };
        writeln!(aside, "{text}")?;
        aside.persist(&self.path).map(drop).map_err(|error| error.error)
    }
}

/// Makes a temporary file next to the one that it will replace. Returns `None` if the file to replace is not
/// a plain file.
fn aside(path: &Path) -> io::Result<Option<NamedTempFile>> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(None);
    }
    let permissions = Permissions::from_mode(0o666);
    tempfile::Builder::new().permissions(permissions).tempfile_in(folder_of(path)).map(Some)
}

/// Returns the folder of a file that exists or will be made.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) -> io::Result<()> {
        ResultFile::open(path)?.write(text)
    }

    #[test]
    fn a_result_takes_the_place_of_an_older_one_when_it_is_whole_and_pipes_get_it_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result.json");
        for text in ["{}", "{\"peak\":1}"] {
            write(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{text}\n"));
        }
        // A link is followed to its target.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "[]").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "[]\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left aside");
        assert!(ResultFile::open(&folder.path().join("none/result.json")).is_err());
        write(Path::new("/dev/null"), "{}").unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        ResultFile::check(&pipe).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write(&pipe, "{}").unwrap();
        assert_eq!(reader.join().unwrap(), "{}\n");
    }

    #[test]
    fn a_reader_of_the_old_result_keeps_it_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result.json");
        write(&file, "{\"old\":true}").unwrap();
        let before = File::open(&file).unwrap();
        let opened = ResultFile::open(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{\"old\":true}\n", "until the result is there");
        opened.write("{}").unwrap();
        assert_eq!(io::read_to_string(before).unwrap(), "{\"old\":true}\n", "it was not written in place");
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");
        // A new file is not there until its result is.
        let new = folder.path().join("new.json");
        let opened = ResultFile::open(&new).unwrap();
        assert!(!new.exists());
        opened.write("{}").unwrap();
        assert!(new.exists());
    }
}
