//! A program that outgrows its memory, for measuring its pager: `octavo run`, or the kernel's swap.
//!
//! The program knows nothing of the pager. It fills memory with pages whose bytes follow from their numbers,
//! reads them in order or at random, and checks every byte that it reads. It prints its times, one name and
//! number to a line. `cargo xtask against-kernel` runs it on all sides.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

use octavo_measure::random::{self, Random};

const USAGE: &str = "\
Usage: outgrow order  [--bytes N] [--contents random|half|light] [--passes N]
       outgrow random [--bytes N] [--contents random|half|light] [--threads N] [--reads N]
       outgrow touch  [--bytes N]
       outgrow without-huge-pages PROGRAM [ARGUMENT...]

order writes its pages in order, and then reads them in order, once in each pass. random writes them in order, and then
reads pages at random. touch only stores to every page. without-huge-pages runs a program that gets no huge pages.
";

const PAGE_WORDS: usize = 512;
const PAGE_BYTES: usize = 8 * PAGE_WORDS;
/// The pool of random words. Each page has a part of it.
const POOL_WORDS: usize = 16 * PAGE_WORDS;
/// A slower read has met a page that was not in memory. A page in memory takes a tenth of this.
const FAULT_NANOSECONDS: u64 = 4_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("outgrow: {sentence}.");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let (kind, rest) = arguments.split_first().ok_or(USAGE)?;
    match kind.as_str() {
        "order" => in_order(&Options::parse(rest)?),
        "random" => at_random(&Options::parse(rest)?),
        "touch" => {
            let mut words = vec![0_u64; Options::parse(rest)?.pages() * PAGE_WORDS];
            words.iter_mut().step_by(PAGE_WORDS).for_each(|word| *word = 1);
            check(std::hint::black_box(&words)[0] == 1, || "a store was lost".into())
        }
        "without-huge-pages" => Err(without_huge_pages(rest)),
        _ => Err(USAGE.into()),
    }
}

#[derive(Debug)]
struct Options {
    bytes: usize,
    /// The words of a page that are random. The others are zero.
    filled_words: usize,
    passes: usize,
    threads: usize,
    reads: usize,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options =
            Self { bytes: 512 << 20, filled_words: PAGE_WORDS, passes: 2, threads: 1, reads: 20_000 };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
            let number = || {
                let number = value.parse().ok().filter(|number| *number > 0);
                number.ok_or(format!("{name} needs a number above 0, not `{value}`"))
            };
            match (name.as_str(), value.as_str()) {
                ("--bytes", _) => options.bytes = number()?,
                ("--passes", _) => options.passes = number()?,
                ("--threads", _) => options.threads = number()?,
                ("--reads", _) => options.reads = number()?,
                ("--contents", "random") => options.filled_words = PAGE_WORDS,
                ("--contents", "half") => options.filled_words = PAGE_WORDS / 2,
                ("--contents", "light") => options.filled_words = PAGE_WORDS / 16,
                _ => return Err(format!("there is no option `{name} {value}`")),
            }
        }
        Ok(options)
    }

    fn pages(&self) -> usize {
        self.bytes.div_ceil(PAGE_BYTES)
    }
}

/// What each page holds: a word of its own, then random words, then zeros.
struct PageContents {
    pool: Vec<u64>,
    filled_words: usize,
}

impl PageContents {
    fn new(options: &Options) -> Self {
        Self {
            pool: (0..(POOL_WORDS + PAGE_WORDS) as u64).map(random::word).collect(),
            filled_words: options.filled_words,
        }
    }

    fn of(&self, page: usize) -> (u64, &[u64]) {
        let own = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let begin = page * 67 % POOL_WORDS;
        (own, &self.pool[begin..begin + self.filled_words - 1])
    }

    fn write(&self, page: usize, words: &mut [u64]) {
        let (own, rest) = self.of(page);
        words[0] = own;
        words[1..self.filled_words].copy_from_slice(rest);
        // Store the zeros, too, like a program that computes the whole page.
        words[self.filled_words..].fill(0);
    }

    fn check(&self, page: usize, words: &[u64]) -> Result<(), String> {
        let (own, rest) = self.of(page);
        let holds = words[0] == own
            && words[1..self.filled_words] == *rest
            && words[self.filled_words..].iter().all(|word| *word == 0);
        check(holds, || format!("page {page} does not have the bytes that were stored"))
    }
}

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Returns memory for all pages, plus one to align them to the machine's pages, so that a read touches one
/// page only.
fn memory(options: &Options) -> Vec<u64> {
    vec![0; (options.pages() + 1) * PAGE_WORDS]
}

/// Writes all pages in this memory, and prints how long that took.
fn fill<'a>(memory: &'a mut [u64], options: &Options, contents: &PageContents) -> &'a [u64] {
    let first = memory.as_ptr().align_offset(PAGE_BYTES);
    let words = &mut memory[first..][..options.pages() * PAGE_WORDS];
    let began = Instant::now();
    for (page, words) in words.chunks_exact_mut(PAGE_WORDS).enumerate() {
        contents.write(page, words);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("write_seconds {seconds}");
    println!("write_page_us {}", seconds * 1e6 / options.pages() as f64);
    words
}

fn in_order(options: &Options) -> Result<(), String> {
    let contents = PageContents::new(options);
    let mut memory = memory(options);
    let words = fill(&mut memory, options, &contents);
    let began = Instant::now();
    for _ in 0..options.passes {
        for (page, words) in words.chunks_exact(PAGE_WORDS).enumerate() {
            contents.check(page, words)?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("read_seconds {seconds}");
    println!("read_page_us {}", seconds * 1e6 / (options.pages() * options.passes) as f64);
    Ok(())
}

fn at_random(options: &Options) -> Result<(), String> {
    let contents = PageContents::new(options);
    let mut memory = memory(options);
    let words = fill(&mut memory, options, &contents);
    let reads = options.reads.div_ceil(options.threads);
    let began = Instant::now();
    let faults = std::thread::scope(|scope| {
        let contents = &contents;
        let readers: Vec<_> = (0..options.threads)
            .map(|thread| scope.spawn(move || read(words, contents, reads, thread)))
            .collect();
        let faults =
            readers.into_iter().map(|reader| reader.join().map_err(|_| "a reader panicked".to_owned())?);
        faults.collect::<Result<Vec<_>, _>>()
    })?;
    let seconds = began.elapsed().as_secs_f64();
    println!("read_seconds {seconds}");
    println!("read_us {}", seconds * 1e6 / (reads * options.threads) as f64);
    let mut faults = faults.concat();
    faults.sort_unstable();
    println!("faults {}", faults.len());
    // If all pages are in memory, the rare slow read is due to another program.
    if let Some(median) = faults.get(faults.len() / 2).filter(|_| faults.len() * 100 > options.reads) {
        println!("fault_us {}", *median as f64 / 1e3);
        println!("fault_least_us {}", faults[0] as f64 / 1e3);
        println!("fault_mean_us {}", faults.iter().sum::<u64>() as f64 / 1e3 / faults.len() as f64);
    }
    Ok(())
}

/// Reads pages at random. Returns the nanoseconds of each read that met a page that was not in memory.
fn read(words: &[u64], contents: &PageContents, reads: usize, thread: usize) -> Result<Vec<u64>, String> {
    let mut random = Random::new(thread as u64);
    let mut faults = Vec::with_capacity(reads);
    for _ in 0..reads {
        let page = random.below(words.len() / PAGE_WORDS);
        let began = Instant::now();
        contents.check(page, &words[page * PAGE_WORDS..][..PAGE_WORDS])?;
        let nanoseconds = began.elapsed().as_nanos() as u64;
        if nanoseconds > FAULT_NANOSECONDS {
            faults.push(nanoseconds);
        }
    }
    Ok(faults)
}

/// Becomes another program, without huge pages. If that fails, returns a sentence that says why.
fn without_huge_pages(words: &[String]) -> String {
    let Some((program, arguments)) = words.split_first() else { return USAGE.into() };
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        return format!("the kernel cannot leave huge pages out: {error}");
    }
    format!("cannot run {program}: {}", Command::new(program).args(arguments).exec())
}
