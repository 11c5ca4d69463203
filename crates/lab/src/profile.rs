//! The share of time that each function of Octavo takes, by sampling.
//!
//! A timer of CPU time interrupts the process, and the sampler notes the call stack. A sample counts for the
//! innermost function of Octavo on the stack. Functions of the huge zero page take precedence over the
//! helpers that they call, so that the share of its `get` is the share that perf shows. A function that the
//! compiler inlined counts as a part of the function that contains it.
//!
//! A sample costs a few microseconds, so timed passes are not sampled.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pprof::{Frames, ProfilerGuardBuilder, Report};

use octavo_command::failure::Failure;

/// The sampling rate. The kernel's tick (often 250 Hz) limits it.
const SAMPLES_PER_SECOND: i32 = 997;
/// Enough samples for shares of a few percent.
const SAMPLES_WANTED: u64 = 1000;
/// Sampled time after which fewer samples have to suffice.
const LONGEST: Duration = Duration::from_secs(3);

/// Functions that are counted together with everything that they call.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub name: &'static str,
    /// The module, with `::` at the end, and the type, if the functions belong to one.
    pub module: &'static str,
    pub of_type: &'static str,
    pub functions: &'static [&'static str],
}

/// Samples with a site on the stack.
#[derive(Clone, Copy, Debug, Default)]
struct SiteSamples {
    all: u64,
    waiting: u64,
}

/// The share of all samples inside a site, and the share of all samples that waited for a lock there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteShare {
    pub all: f64,
    pub waiting: f64,
}

/// Samples of each function.
#[derive(Debug, Default)]
pub struct Samples {
    by_function: BTreeMap<String, u64>,
    by_site: BTreeMap<&'static str, SiteSamples>,
    time: Duration,
    failed: Option<String>,
    sites: &'static [Site],
}

impl Samples {
    /// Runs `work` and adds the samples of that time. If sampling fails, the work is done anyway, and
    /// [`Samples::shares`] says why it failed.
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        // If a sample were taken inside these libraries, unwinding could meet a lock that the interrupted
        // code holds.
        let blocked = ["libgcc", "pthread", "vdso"];
        let guard = ProfilerGuardBuilder::default().frequency(SAMPLES_PER_SECOND).blocklist(&blocked).build();
        let started = Instant::now();
        let result = work();
        self.time += started.elapsed();
        match guard.and_then(|guard| guard.report().build()) {
            Ok(report) => self.add(&report),
            Err(error) => self.failed = Some(error.to_string()),
        }
        result
    }

    /// Returns whether there are enough samples for shares of a few percent, or a reason to stop sampling.
    pub fn is_enough(&self) -> bool {
        self.count() >= SAMPLES_WANTED || self.time >= LONGEST || self.failed.is_some()
    }

    /// Makes samples that also count these sites.
    pub fn watching(sites: &'static [Site]) -> Self {
        Self { sites, ..Self::default() }
    }

    fn add(&mut self, report: &Report) {
        for (stack, &count) in &report.data {
            self.add_site(stack, count.max(0) as u64);
            let function = function_of(stack).unwrap_or_else(|| "other".into());
            *self.by_function.entry(function).or_default() += count.max(0) as u64;
        }
    }

    /// Counts a stack for the innermost site on it.
    fn add_site(&mut self, stack: &Frames, count: u64) {
        let mut waiting = false;
        for symbol in stack.frames.iter().filter_map(|frame| frame.last()) {
            let name = symbol.name();
            // The standard library's function for a lock whose first try failed.
            waiting |= name.contains("lock_contended");
            let Some(path) = path_of(&name, symbol.filename.as_deref()) else { continue };
            if let Some(site) = self.sites.iter().find(|site| site.has(&path)) {
                let samples = self.by_site.entry(site.name).or_default();
                samples.all += count;
                samples.waiting += u64::from(waiting) * count;
                return;
            }
        }
    }

    /// Returns the share of a watched site.
    pub fn site_share(&self, name: &str) -> SiteShare {
        let all = self.count().max(1) as f64;
        let samples = self.by_site.get(name).copied().unwrap_or_default();
        SiteShare { all: samples.all as f64 / all, waiting: samples.waiting as f64 / all }
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        self.by_function.values().sum()
    }

    /// Returns the shares by function. They add up to 1, unless there are none.
    pub fn shares(&self) -> Result<BTreeMap<String, f64>, Failure> {
        if let Some(error) = &self.failed {
            return Err(Failure::Said(format!("time by function cannot be sampled: {error}")));
        }
        let all = self.count() as f64;
        Ok(self.by_function.iter().map(|(name, &count)| (name.clone(), count as f64 / all)).collect())
    }
}

impl Site {
    /// Returns whether the path names one of the site's functions: with the type's name, or without it if the
    /// path comes from line tables.
    fn has(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix(self.module) else { return false };
        let name = rest.strip_prefix(self.of_type).and_then(|rest| rest.strip_prefix("::")).unwrap_or(rest);
        self.functions.contains(&name)
    }
}

/// Returns the share of time inside the huge zero page's get.
pub fn zero_page_get_share(shares: &BTreeMap<String, f64>) -> f64 {
    let is_get = |name: &str| {
        is_zero_page(name) && name.rsplit("::").next().is_some_and(|function| function.starts_with("get"))
    };
    // Fold from 0, since the `sum` of no values would be -0.
    shares.iter().filter(|(name, _)| is_get(name)).fold(0.0, |sum, (_, share)| sum + share)
}

fn is_zero_page(name: &str) -> bool {
    name.contains("zero_page::")
}

/// Returns the function that a sample counts for. Frames are ordered innermost first. Each frame lists the
/// functions that were inlined into it, and then its own function. Only its own function is certain, since
/// samples are merged by function.
fn function_of(stack: &Frames) -> Option<String> {
    let own = stack.frames.iter().filter_map(|frame| frame.last());
    let ours: Vec<String> =
        own.filter_map(|symbol| path_of(&symbol.name(), symbol.filename.as_deref())).collect();
    ours.iter().find(|name| is_zero_page(name)).or(ours.first()).cloned()
}

/// Returns the full path of a function of Octavo. Line tables have a function's bare name and its file,
/// symbol tables its full name.
fn path_of(symbol: &str, file: Option<&Path>) -> Option<String> {
    let name = plain_name(symbol);
    if name.starts_with("octavo") && name.contains("::") {
        return Some(name);
    }
    let file = file?.to_str()?;
    let (folder, path) = file.rsplit_once("/src/")?;
    let package = match folder.rsplit('/').next()? {
        "lab" if folder.ends_with("crates/lab") => "octavo_lab",
        "platform" if folder.ends_with("crates/platform") => "octavo_platform",
        folder if folder.starts_with("octavo") => "octavo",
        _ => return None,
    };
    let module = path.strip_suffix(".rs")?;
    let module =
        ["/mod", "lib", "main"].iter().fold(module, |path, end| path.strip_suffix(end).unwrap_or(path));
    let parts =
        [package].into_iter().chain(module.split('/').filter(|part| !part.is_empty())).chain([&*name]);
    Some(parts.collect::<Vec<_>>().join("::"))
}

/// Returns a function's path without the compiler's additions: `<octavo::a::B as
/// octavo::c::D<E>>::get::h0123…` becomes `octavo::a::B::get`.
fn plain_name(symbol: &str) -> String {
    let without_hash = match symbol.rfind("::h") {
        Some(at) if symbol.len() == at + 19 => &symbol[..at],
        _ => symbol,
    };
    let mut text = without_hash;
    let mut joined = String::new();
    if let Some(inner) = text.strip_prefix('<') {
        let (subject, rest) = split_at_closing(inner);
        let subject = subject.split(" as ").next().unwrap_or(subject);
        joined.push_str(subject);
        joined.push_str(rest);
        text = &joined;
    }
    let mut depth = 0u32;
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    plain.replace("::::", "::").trim_end_matches("::").to_string()
}

/// Splits the text behind the bracket that closes an already open one.
fn split_at_closing(text: &str) -> (&str, &str) {
    let mut depth = 1;
    for (index, letter) in text.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[..index], &text[index + 1..]);
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_hashes_traits_and_generics() {
        let cases = [
            ("octavo::frame::zero_page::HugeZeroPage::get", "octavo::frame::zero_page::HugeZeroPage::get"),
            ("octavo::frame::zero_page::get::h0123456789abcdef", "octavo::frame::zero_page::get"),
            ("<octavo::a::B<T> as octavo::c::D<E>>::get", "octavo::a::B::get"),
            ("octavo::usemem::touch::pass::<octavo::Space, true>", "octavo::usemem::touch::pass"),
            ("<broken", "broken"),
        ];
        for (symbol, plain) in cases {
            assert_eq!(plain_name(symbol), plain);
        }
    }

    #[test]
    fn bare_names_get_their_path_from_the_file() {
        let cases = [
            ("get", "/a/crates/octavo/src/frame/zero_page.rs", Some("octavo::frame::zero_page::get")),
            ("run<u8, true>", "crates/lab/src/usemem/touch.rs", Some("octavo_lab::usemem::touch::run")),
            ("load", "crates/platform/src/arena_bytes.rs", Some("octavo_platform::arena_bytes::load")),
            ("f", "crates/octavo/src/table/mod.rs", Some("octavo::table::f")),
            ("f", "/x/octavo-0.1.0/src/lib.rs", Some("octavo::f")),
            ("lock_contended", "/rustc/library/std/src/sys/sync/mutex/futex.rs", None),
            ("octavo::table::f", "/rustc/library/core/src/a.rs", Some("octavo::table::f")),
        ];
        for (symbol, file, path) in cases {
            assert_eq!(path_of(symbol, Some(Path::new(file))).as_deref(), path, "{symbol} in {file}");
        }
        assert_eq!(path_of("get", None), None);
    }

    #[test]
    fn a_site_is_its_functions_by_either_name() {
        let site =
            Site { name: "s", module: "octavo::swap::cache::", of_type: "Cache", functions: &["insert"] };
        assert!(site.has("octavo::swap::cache::insert") && site.has("octavo::swap::cache::Cache::insert"));
        assert!(!site.has("octavo::swap::cache::index::insert") && !site.has("octavo::lru::insert"));
        assert!(!site.has("octavo::swap::cache::insert_locked"));
    }

    #[test]
    fn only_the_zero_pages_get_counts_as_its_get() {
        let shares = BTreeMap::from([
            ("octavo::frame::zero_page::HugeZeroPage::get".to_string(), 0.5),
            ("octavo::frame::zero_page::HugeZeroPage::put".to_string(), 0.2),
            ("octavo::table::get".to_string(), 0.1),
        ]);
        assert_eq!(zero_page_get_share(&shares), 0.5);
    }

    #[test]
    fn work_that_takes_time_is_sampled() {
        let mut samples = Samples::default();
        let started = Instant::now();
        while samples.count() < 20 && started.elapsed().as_secs() < 20 {
            samples.during(|| (0..30_000_000u64).fold(0, |a, b| std::hint::black_box(a ^ b)));
        }
        assert!(samples.count() >= 20, "{} samples", samples.count());
        let sum: f64 = samples.shares().unwrap().values().sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }
}
