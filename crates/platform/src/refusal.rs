//! The kernel's refusals, in words that name the limit behind them.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Describes an error of the kernel. If a limit of this process may be the reason, the text ends with that
/// limit and its value.
pub fn in_words(error: &io::Error) -> String {
    let limit = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => limit(Resource::Nproc, "this user", "processes and threads", "RLIMIT_NPROC"),
        Some(Errno::MFILE) => limit(Resource::Nofile, "a process", "open files", "RLIMIT_NOFILE"),
        Some(Errno::NOMEM) => limit(Resource::As, "a process", "bytes of addresses", "RLIMIT_AS"),
        Some(Errno::FBIG) => limit(Resource::Fsize, "a file", "bytes", "RLIMIT_FSIZE"),
        _ => None,
    };
    limit.map_or_else(|| error.to_string(), |limit| format!("{error}: {limit}"))
}

fn limit(resource: Resource, who: &str, what: &str, name: &str) -> Option<String> {
    getrlimit(resource).current.map(|most| format!("{who} may have {most} {what} here ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_limit_behind_it() {
        let most = getrlimit(Resource::Nofile).current.expect("descriptors are limited everywhere");
        let said = in_words(&Errno::MFILE.into());
        assert!(
            said.ends_with(&format!("a process may have {most} open files here (RLIMIT_NOFILE)")),
            "{said}"
        );
        assert_eq!(in_words(&Errno::PERM.into()), io::Error::from(Errno::PERM).to_string());
    }
}
