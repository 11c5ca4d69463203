//! An inverted index of real text, eight times as large as its memory budget.
//!
//! ```text
//! cargo run --release --example word_index -- /usr/share
//! cargo run --release --example word_index -- /usr/include memory page --memory 32M --repeat 2
//! ```
//!
//! The program reads every text file below the folder, and keeps each word's places (file and byte offset) in
//! a [`Space`]. It builds the same index in plain memory, and checks the index in the space against it word
//! by word. A small folder is read again and again, as if it had further files, until the index is eight
//! times as large as the budget. `--repeat N` reads the folder exactly N times.
//!
//! The space holds three structures, which the program reaches by `load`, `store`, `read` and `write`:
//!
//! ```text
//! table    a slot: hash | address of the first record with it, or 0; a power of two of them, at most 3/4 used
//! record   next record of the same hash | first chunk | last chunk | places | length | the word's bytes
//! chunk    next chunk | room << 32 | used | places, 8 bytes each: file << 32 | offset
//! ```
//!
//! A structure larger than memory should be visited page by page, and not at random. So words come in batches
//! that are sorted by hash, which is the order of the slots. Known words get their new places in the order of
//! their records.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use octavo::{Counter, Manager, RegionOptions, Space};

const USAGE: &str = "usage: word_index FOLDER [WORD]... [--memory BUDGET] [--repeat N]\n\
                     BUDGET is at least 16M, and takes a suffix k, m or g";
const SAMPLE_WORDS: &[&str] = &["the", "memory", "copyright", "licence", "license", "page", "octavo"];
/// The index grows to this many times the budget, unless `--repeat` is given.
const PRESSURE: u64 = 8;
/// The bytes of text that are read before their words go to the index.
const BATCH_BYTES: usize = 32 << 20;
const LARGEST_FILE_BYTES: u64 = 64 << 20;
const LONGEST_WORD_BYTES: usize = 64;
/// The address space for records and chunks. It costs nothing until it is used.
const HEAP_BYTES: u64 = 1 << 40;
/// The number of places in a word's first chunk. Each further chunk has twice as many, up to a page.
const FIRST_CHUNK_PLACES: u64 = 2;
const LARGEST_CHUNK_PLACES: u64 = 510;

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(complaint) => {
            eprintln!("word_index: {complaint}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("word_index: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> AnyResult<()> {
    let files = text_files(&options.folder)?;
    if files.is_empty() {
        return Err(
            format!("no text below {}; give a folder with text files", options.folder.display()).into()
        );
    }
    let manager = Manager::builder().budget_bytes(options.budget_bytes).build()?;
    let space = manager.space()?;
    let before = manager.counters();
    let started = Instant::now();

    let mut index = Index::new(&space)?;
    let mut plain = PlainIndex::default();
    let mut texts = Texts::new(&files);
    let enough = |index: &Index, texts: &Texts| match options.repeat {
        Some(times) => texts.rounds() >= times,
        None => index.bytes() >= PRESSURE * options.budget_bytes,
    };
    while !(enough(&index, &texts) && texts.at_round_end()) {
        let batch = texts.next_batch(BATCH_BYTES)?;
        index.add(&batch)?;
        plain.add(batch);
    }
    println!(
        "read {} files, {} of text, in {:.1} s",
        texts.files_read(),
        mib(texts.bytes_read),
        started.elapsed().as_secs_f64()
    );
    println!("index: {} words at {} places, {}", index.words, index.places, mib(index.bytes()));
    let ratio = index.bytes() as f64 / options.budget_bytes as f64;
    println!("budget: {}; the index is {ratio:.1} times as large", mib(options.budget_bytes));

    for word in &options.words {
        answer(&index, &texts, word)?;
    }
    verify(&index, &plain)?;
    let counted = manager.counters().since(&before);
    println!(
        "{} faults, {} pages swapped out, {} swapped in, {:.1} s altogether",
        counted.get(Counter::PageFault),
        counted.get(Counter::SwapOut),
        counted.get(Counter::SwapIn),
        started.elapsed().as_secs_f64()
    );
    println!("verified {} words", index.words);
    Ok(())
}

fn answer(index: &Index, texts: &Texts, word: &str) -> AnyResult<()> {
    let places = index.places_of(word.to_ascii_lowercase().as_bytes())?;
    println!("\"{word}\": {} places", places.len());
    for &place in places.iter().take(3) {
        println!("    {} at byte {}", texts.name_of(place).display(), place as u32);
    }
    Ok(())
}

/// Checks that every word has the same places in both indexes, and that neither has more words.
fn verify(index: &Index, plain: &PlainIndex) -> AnyResult<()> {
    if index.words != plain.words.len() as u64 {
        return Err(format!("{} words are indexed, but there were {}", index.words, plain.words.len()).into());
    }
    for (word, places) in &plain.words {
        let found = index.places_of(word)?;
        if found != *places {
            let word = String::from_utf8_lossy(word);
            return Err(format!("wrong places for {word:?}: {} of {}", found.len(), places.len()).into());
        }
    }
    Ok(())
}

/// The index in the space.
struct Index<'a> {
    space: &'a Space,
    table: u64,
    slots: u64,
    heap: Heap,
    words: u64,
    places: u64,
}

/// The byte offsets of the fields of a slot of the table.
mod slot {
    pub const BYTES: u64 = 16;
    pub const HASH: u64 = 0;
    pub const RECORD: u64 = 8;
}

/// The byte offsets of the fields of a word's record.
mod record {
    pub const NEXT: u64 = 0;
    pub const FIRST: u64 = 8;
    pub const LAST: u64 = 16;
    pub const PLACES: u64 = 24;
    pub const LENGTH: u64 = 32;
    pub const BYTES: u64 = 40;
}

/// The byte offsets of the fields of a chunk of places.
mod chunk {
    pub const NEXT: u64 = 0;
    pub const ROOM_AND_USED: u64 = 8;
    pub const PLACES: u64 = 16;
}

impl<'a> Index<'a> {
    fn new(space: &'a Space) -> octavo::Result<Self> {
        let slots = 1 << 12;
        let table = space.map(slots * slot::BYTES, RegionOptions::default())?;
        let heap = Heap::new(space)?;
        Ok(Self { space, table, slots, heap, words: 0, places: 0 })
    }

    /// Returns the bytes in use: the table, the records and the chunks.
    fn bytes(&self) -> u64 {
        self.slots * slot::BYTES + self.heap.used()
    }

    /// Adds words in the order of their hashes, each with further places.
    fn add(&mut self, batch: &WordBatch) -> octavo::Result<()> {
        // The table grows once for all words. Sorted words fill the table from one end, and would crowd this
        // end before the table as a whole is full.
        self.make_room_for(batch.len() as u64)?;
        let mut known = Vec::new();
        for (number, (word, places)) in batch.iter().enumerate() {
            let hash = hash_of(word);
            let slot = self.slot_of(hash)?;
            match self.load(slot + slot::RECORD)? {
                0 => {
                    let record = self.new_record(word)?;
                    self.space.store(slot + slot::HASH, hash)?;
                    self.space.store(slot + slot::RECORD, record)?;
                    self.append(record, places)?;
                }
                first => known.push((first, number)),
            }
        }
        known.sort_unstable();
        for (first, number) in known {
            let (word, places) = &batch[number];
            let record = match self.record_of(word, first)? {
                ChainPlace::Record(record) => record,
                ChainPlace::EndOfChain(last) => {
                    let record = self.new_record(word)?;
                    self.space.store(last + record::NEXT, record)?;
                    record
                }
            };
            self.append(record, places)?;
        }
        Ok(())
    }

    fn places_of(&self, word: &[u8]) -> octavo::Result<Vec<u64>> {
        let first = self.load(self.slot_of(hash_of(word))? + slot::RECORD)?;
        if first == 0 {
            return Ok(Vec::new());
        }
        let ChainPlace::Record(record) = self.record_of(word, first)? else { return Ok(Vec::new()) };
        let mut places = Vec::new();
        let mut at = self.load(record + record::FIRST)?;
        while at != 0 {
            let (_, used) = halves(self.load(at + chunk::ROOM_AND_USED)?);
            let mut bytes = vec![0; used as usize * 8];
            self.space.read(at + chunk::PLACES, &mut bytes)?;
            places.extend(bytes.chunks_exact(8).map(word_of));
            at = self.load(at + chunk::NEXT)?;
        }
        Ok(places)
    }

    /// Finds the slot that has this hash, or else the free slot for this hash.
    fn slot_of(&self, hash: u64) -> octavo::Result<u64> {
        let mut number = self.home_of(hash);
        loop {
            let slot = self.table + number * slot::BYTES;
            if self.load(slot + slot::RECORD)? == 0 || self.load(slot + slot::HASH)? == hash {
                return Ok(slot);
            }
            number = (number + 1) & (self.slots - 1);
        }
    }

    /// The high bits decide, so that the order of hashes is the order of slots at every size of the table.
    fn home_of(&self, hash: u64) -> u64 {
        hash >> (u64::BITS - self.slots.trailing_zeros())
    }

    /// Finds the word's record among the records of its hash. `first` is the first of these.
    fn record_of(&self, word: &[u8], first: u64) -> octavo::Result<ChainPlace> {
        let mut record = first;
        loop {
            if self.holds(record, word)? {
                return Ok(ChainPlace::Record(record));
            }
            match self.load(record + record::NEXT)? {
                0 => return Ok(ChainPlace::EndOfChain(record)),
                next => record = next,
            }
        }
    }

    fn holds(&self, record: u64, word: &[u8]) -> octavo::Result<bool> {
        if self.load(record + record::LENGTH)? != word.len() as u64 {
            return Ok(false);
        }
        let mut bytes = [0; LONGEST_WORD_BYTES];
        let bytes = &mut bytes[..word.len()];
        self.space.read(record + record::BYTES, bytes)?;
        Ok(bytes == word)
    }

    fn new_record(&mut self, word: &[u8]) -> octavo::Result<u64> {
        let record = self.heap.take(record::BYTES + word.len() as u64);
        self.space.store(record + record::LENGTH, word.len() as u64)?;
        self.space.write(record + record::BYTES, word)?;
        self.words += 1;
        // The other fields are zero, since fresh memory of a space is zero.
        Ok(record)
    }

    fn append(&mut self, record: u64, mut places: &[u64]) -> octavo::Result<()> {
        let mut last = self.load(record + record::LAST)?;
        let (mut room, mut used) = match last {
            0 => (0, 0),
            last => halves(self.load(last + chunk::ROOM_AND_USED)?),
        };
        self.places += places.len() as u64;
        let all = self.load(record + record::PLACES)? + places.len() as u64;
        self.space.store(record + record::PLACES, all)?;
        while !places.is_empty() {
            if used == room {
                (last, room, used) = (self.new_chunk(record, last, room)?, next_room(room), 0);
            }
            let now = places.len().min((room - used) as usize);
            let bytes: Vec<u8> = places[..now].iter().flat_map(|place| place.to_le_bytes()).collect();
            self.space.write(last + chunk::PLACES + used * 8, &bytes)?;
            used += now as u64;
            self.space.store(last + chunk::ROOM_AND_USED, room << 32 | used)?;
            places = &places[now..];
        }
        Ok(())
    }

    /// Adds a chunk behind the chunk `last`, which has `room` places (0: there is no chunk yet).
    fn new_chunk(&mut self, record: u64, last: u64, room: u64) -> octavo::Result<u64> {
        let fresh = self.heap.take(chunk::PLACES + next_room(room) * 8);
        let link = if last == 0 { record + record::FIRST } else { last + chunk::NEXT };
        self.space.store(link, fresh)?;
        self.space.store(record + record::LAST, fresh)?;
        Ok(fresh)
    }

    /// Makes the table larger if `words` more words need it. The old table goes back to the space.
    fn make_room_for(&mut self, words: u64) -> octavo::Result<()> {
        let (old, old_slots) = (self.table, self.slots);
        self.slots = old_slots.max(((self.words + words) * 4 / 3 + 1).next_power_of_two());
        if self.slots == old_slots {
            return Ok(());
        }
        self.table = self.space.map(self.slots * slot::BYTES, RegionOptions::default())?;
        for from in (0..old_slots).map(|number| old + number * slot::BYTES) {
            let record = self.load(from + slot::RECORD)?;
            if record != 0 {
                let hash = self.load(from + slot::HASH)?;
                let to = self.slot_of(hash)?;
                self.space.store(to + slot::HASH, hash)?;
                self.space.store(to + slot::RECORD, record)?;
            }
        }
        self.space.unmap(old, old_slots * slot::BYTES)
    }

    fn load(&self, address: u64) -> octavo::Result<u64> {
        self.space.load::<u64>(address)
    }
}

/// The place of a word in the chain of its hash.
enum ChainPlace {
    Record(u64),
    /// The chain does not have the word. This is its last record.
    EndOfChain(u64),
}

fn next_room(room: u64) -> u64 {
    (room * 2).clamp(FIRST_CHUNK_PLACES, LARGEST_CHUNK_PLACES)
}

fn halves(word: u64) -> (u64, u64) {
    (word >> 32, word & 0xffff_ffff)
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// FNV-1a, with a last step that mixes the high bits well.
fn hash_of(word: &[u8]) -> u64 {
    let hash = word.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Memory that is taken and never given back before the space is dropped.
struct Heap {
    start: u64,
    next: u64,
}

impl Heap {
    fn new(space: &Space) -> octavo::Result<Self> {
        let start = space.map(HEAP_BYTES, RegionOptions::default())?;
        Ok(Self { start, next: start })
    }

    fn used(&self) -> u64 {
        self.next - self.start
    }

    /// Takes `bytes`, rounded up to words. Addresses behind the heap's end are not mapped, so an access there
    /// is an error.
    fn take(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next += bytes.next_multiple_of(8);
        address
    }
}

/// The same index in plain memory. Its words have the order in which they were first found.
#[derive(Default)]
struct PlainIndex {
    words: Vec<(Vec<u8>, Vec<u64>)>,
    number_of: HashMap<Vec<u8>, usize>,
}

impl PlainIndex {
    fn add(&mut self, batch: WordBatch) {
        for (word, mut places) in batch {
            match self.number_of.get(&word) {
                Some(&number) => self.words[number].1.append(&mut places),
                None => {
                    self.number_of.insert(word.clone(), self.words.len());
                    self.words.push((word, places));
                }
            }
        }
    }
}

/// Words of some text with their places, sorted by hash like the table.
type WordBatch = Vec<(Vec<u8>, Vec<u64>)>;

/// The words of the files, which are read again and again.
struct Texts<'a> {
    files: &'a [PathBuf],
    /// The number of files read. A file that is read again counts again.
    taken: usize,
    bytes_read: u64,
}

impl<'a> Texts<'a> {
    fn new(files: &'a [PathBuf]) -> Self {
        Self { files, taken: 0, bytes_read: 0 }
    }

    fn rounds(&self) -> u64 {
        (self.taken / self.files.len()) as u64
    }

    fn at_round_end(&self) -> bool {
        self.taken > 0 && self.taken.is_multiple_of(self.files.len())
    }

    fn files_read(&self) -> usize {
        self.taken
    }

    fn name_of(&self, place: u64) -> &Path {
        &self.files[(place >> 32) as usize % self.files.len()]
    }

    /// Reads files until there is enough text, or until the last file was read. Returns their words.
    fn next_batch(&mut self, enough_bytes: usize) -> AnyResult<WordBatch> {
        let mut places_of: HashMap<Vec<u8>, Vec<u64>> = HashMap::new();
        let mut bytes = 0;
        while bytes < enough_bytes {
            let path = &self.files[self.taken % self.files.len()];
            let file =
                u32::try_from(self.taken).map_err(|_| "more than 2^32 files; give a lower --repeat")?;
            let text = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            for (offset, word) in words_of(&text) {
                let place = u64::from(file) << 32 | offset as u64;
                places_of.entry(word).or_default().push(place);
            }
            bytes += text.len();
            self.taken += 1;
            if self.at_round_end() {
                break;
            }
        }
        self.bytes_read += bytes as u64;
        let mut batch: WordBatch = places_of.into_iter().collect();
        batch.sort_by_cached_key(|(word, _)| (hash_of(word), word.clone()));
        Ok(batch)
    }
}

/// Returns words in lower case with their byte offsets. A word is a run of letters, digits, `_` and bytes
/// beyond ASCII.
fn words_of(text: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].iter().position(is_letter)?;
        let start = at;
        at += text[at..].iter().position(|byte| !is_letter(byte)).unwrap_or(text.len() - at);
        Some((start, &text[start..at]))
    })
    .filter(|(_, word)| word.len() <= LONGEST_WORD_BYTES)
    .map(|(offset, word)| (offset, word.to_ascii_lowercase()))
}

/// Lists the text files below a folder, in an order that does not change from run to run. It follows no
/// links. It leaves out files that cannot be read, that hold zero bytes, or that are very large.
fn text_files(folder: &Path) -> AnyResult<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut files = Vec::new();
    let mut folders = vec![entries];
    while let Some(entries) = folders.pop() {
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.extend(fs::read_dir(entry.path())),
                Ok(kind) if kind.is_file() && is_text(&entry.path()) => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_text(path: &Path) -> bool {
    let small = fs::metadata(path).is_ok_and(|data| (1..=LARGEST_FILE_BYTES).contains(&data.len()));
    small && fs::read(path).is_ok_and(|bytes| !bytes.contains(&0) && !bytes.starts_with(&[0x1f, 0x8b]))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// The command line.
struct Options {
    folder: PathBuf,
    words: Vec<String>,
    budget_bytes: u64,
    repeat: Option<u64>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut folder = None;
        let mut words = Vec::new();
        let mut budget_bytes = 16 << 20;
        let mut repeat = None;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--memory" => budget_bytes = parse_size(&value_of(&mut arguments, "--memory")?)?,
                "--repeat" => {
                    let times = value_of(&mut arguments, "--repeat")?.parse().ok().filter(|&times| times > 0);
                    repeat = Some(times.ok_or("--repeat takes a number above 0")?);
                }
                flag if flag.starts_with("--") => return Err(format!("unknown option {flag}")),
                _ if folder.is_none() => folder = Some(PathBuf::from(argument)),
                _ => words.push(argument),
            }
        }
        if words.is_empty() {
            words = SAMPLE_WORDS.iter().map(|word| word.to_string()).collect();
        }
        Ok(Self { folder: folder.ok_or("no folder given")?, words, budget_bytes, repeat })
    }
}

fn value_of(arguments: &mut impl Iterator<Item = String>, flag: &str) -> Result<String, String> {
    arguments.next().ok_or_else(|| format!("{flag} needs a value"))
}

fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = [("k", 10), ("m", 20), ("g", 30)]
        .iter()
        .find_map(|&(suffix, shift)| Some((lower.strip_suffix(suffix)?, shift)))
        .unwrap_or((&lower, 0));
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text} is no size; write 16M, 1G or a number of bytes"))
}
