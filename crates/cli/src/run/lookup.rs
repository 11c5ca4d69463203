//! Finds a program as `execvp` does.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The folders to search if there is no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The result of a search for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A file that may be executed.
    Found(PathBuf),
    /// The path exists, but may not be executed: it is a folder, or a file without that permission.
    NotExecutable(PathBuf),
    Missing,
}

/// Looks for a program. A name with a slash is a path. Any other name is looked for in the folders of PATH.
pub fn look_up(program: &OsStr) -> Lookup {
    let path = env::var_os("PATH");
    look_in(program, path.as_deref().unwrap_or(OsStr::new(DEFAULT_PATH)))
}

fn look_in(program: &OsStr, path: &OsStr) -> Lookup {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let places: Vec<PathBuf> = if is_path {
        vec![program.into()]
    } else {
        env::split_paths(path).map(|folder| folder.join(program)).collect()
    };
    let may_run = |place: &Path| !place.is_dir() && access(place, Access::EXEC_OK).is_ok();
    match places.iter().find(|place| may_run(place)) {
        Some(place) => Lookup::Found(place.clone()),
        None => {
            places.into_iter().find(|place| place.exists()).map_or(Lookup::Missing, Lookup::NotExecutable)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_for_in_the_path_and_paths_are_taken_as_they_are() {
        let look = |program: &str| look_in(OsStr::new(program), OsStr::new("/nowhere:/etc:/bin"));
        assert_eq!(look("sh"), Lookup::Found("/bin/sh".into()));
        assert_eq!(look("/bin/sh"), Lookup::Found("/bin/sh".into()));
        assert_eq!(look("hostname-of-nobody"), Lookup::Missing);
        assert_eq!(look("/etc/passwd"), Lookup::NotExecutable("/etc/passwd".into()));
        assert_eq!(look("/etc"), Lookup::NotExecutable("/etc".into()));
        assert_eq!((look("no-such-program"), look("./no-such-program")), (Lookup::Missing, Lookup::Missing));
    }
}
