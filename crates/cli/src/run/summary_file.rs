//! The summary of a run as a file, which is written whole or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use octavo_command::choices::JsonTarget;
use octavo_command::failure::Failure;
use octavo_pager::Summary;
use tempfile::NamedTempFile;

use crate::run::messages::{self, said_of};

/// Writes the summary to the target of `--json`.
pub fn write(target: &JsonTarget, summary: &Summary) -> Result<(), Failure> {
    let json = serde_json::to_string(summary)
        .map_err(|error| Failure::Said(format!("the summary cannot be written as JSON: {error}")))?;
    match target {
        JsonTarget::Stdout => println!("{json}"),
        JsonTarget::File(path) => write_file(path, &json)?,
    }
    Ok(())
}

/// Writes a temporary file, and moves it into place when it is complete. Writes directly to anything that is
/// not a plain file, such as a pipe.
fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let Some(mut aside) = aside(path)? else { return fs::write(path, format!("{text}\n")) };
        writeln!(aside, "{text}")?;
        aside.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(|error| cannot_write(path, error))
}

/// Makes a temporary file next to the one that it will replace. Returns `None` if the file to replace is not
/// a plain file.
pub fn aside(path: &Path) -> io::Result<Option<NamedTempFile>> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(None);
    }
    let permissions = Permissions::from_mode(0o666);
    tempfile::Builder::new().permissions(permissions).tempfile_in(folder_of(path)).map(Some)
}

/// Returns the folder of a file that exists or will be made.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure::Said(said_of(&messages::NO_SUMMARY, path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_takes_the_place_of_an_older_one_when_it_is_whole_and_pipes_get_it_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("summary.json");
        for text in ["{}", "{\"peak\":1}"] {
            write_file(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{text}\n"));
        }
        // A link is followed to its target.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, "[]").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "[]\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left aside");
        assert!(write_file(&folder.path().join("none/summary.json"), "{}").is_err());
        write_file(Path::new("/dev/null"), "{}").unwrap();
    }
}
