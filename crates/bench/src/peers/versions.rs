//! The versions of the peers that this program was built with.

/// The workspace's lock file, which names the linked versions, so no version is written down twice.
const LOCK: &str = include_str!("../../../../Cargo.lock");

/// Returns the version of the crate `name`, the highest if the file lists several.
pub fn of_crate(name: &str) -> Option<String> {
    version_in(LOCK, name).map(str::to_owned)
}

fn version_in<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = lock.lines();
    let mut found = None;
    while let Some(line) = lines.next() {
        if quoted(line, "name = ") == Some(name) {
            found = lines.next().and_then(|next| quoted(next, "version = "));
        }
    }
    found
}

fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2\"\n\n[[package]]\nname = \"b\"\nversion = \"3.4+x\"\n";
        assert_eq!(version_in(lock, "b"), Some("3.4+x"));
        assert_eq!(version_in(lock, "c"), None);
    }

    #[test]
    fn this_crate_is_in_the_lock_file() {
        assert_eq!(of_crate(env!("CARGO_PKG_NAME")).as_deref(), Some(env!("CARGO_PKG_VERSION")));
    }
}
