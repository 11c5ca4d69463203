//! The summary of a run as a file, which is written whole or not at all.

use octavo_command::choices::JsonTarget;
use octavo_command::failure::Failure;
use octavo_command::result_file::ResultFile;
use octavo_pager::Summary;

use crate::run::messages::{self, said_of};

/// Writes the summary to the target of `--json`.
pub fn write(target: &JsonTarget, summary: &Summary) -> Result<(), Failure> {
    let json = summary.measured().to_string();
    match target {
        JsonTarget::Stdout => println!("{json}"),
        JsonTarget::File(path) => ResultFile::open(path)
            .and_then(|file| file.write(&json))
            .map_err(|error| Failure::Said(said_of(&messages::NO_SUMMARY, path, &error)))?,
    }
    Ok(())
}
