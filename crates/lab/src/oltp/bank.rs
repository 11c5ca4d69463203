//! The bank of TPC-B: accounts, tellers, branches and a history, in B-trees of one file, with a write-ahead
//! log.
//!
//! **A transfer** latches the leaves of an account, a teller, a branch and the history, in this order. It
//! appends one record with all four changes, changes the leaves, lets them go, and waits until the record is
//! durable. Each leaf gets the LSN of the record's end. The leaves are latched together, so each page sees
//! its changes in the order of the log.
//!
//! **Recovery only redoes.** The file's write gate holds a page back until the log is durable up to the
//! page's LSN. So the file never has a part of a transfer that the log does not have whole, and nothing is
//! undone.
//!
//! **The first change of a page after a checkpoint** puts the page as it was into the same record. Recovery
//! takes the page from there. So it does not matter which version the file has, or whether a crash has torn
//! it. A split puts all its pages into a record of its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{bytes_of, cast_slice, pod_read_unaligned};
use octavo::Manager;
use octavo::file::WriteGate;
use octavo_command::failure::Failure;
use octavo_command::output::tell;

use super::btree::{Leaf, Node, PageFile, Tree};
use super::log::Log;

pub const ACCOUNTS: u64 = 100_000;
pub const TELLERS: u64 = 10;
const TREES: u64 = 4;
const NODE_WORDS: usize = size_of::<Node>() / 8;

/// A row of an account, a teller or a branch: a balance, and filler up to about 100 bytes.
const ROW: usize = 12;
/// A row of the history: account, teller, branch, amount, time.
const PAST: usize = 5;

/// The amounts of a transfer, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub account: u64,
    pub teller: u64,
    pub branch: u64,
    pub amount: i64,
}

/// What all rows say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub accounts: i64,
    pub tellers: i64,
    pub branches: i64,
    pub history: i64,
    pub transfers: u64,
    /// The number of the last transfer.
    pub last: u64,
}

impl Audit {
    pub fn adds_up(&self) -> bool {
        [self.tellers, self.branches, self.history].iter().all(|sum| *sum == self.accounts)
    }
}

pub struct Bank {
    pages: PageFile,
    log: Arc<Log>,
    /// The number of the next transfer.
    next: AtomicU64,
}

/// Holds pages back until their log is durable.
struct Gate(Arc<Log>);

impl Gate {
    fn lsn(page: &[u8]) -> u64 {
        pod_read_unaligned(&page[..8])
    }
}

impl WriteGate for Gate {
    fn may_write(&self, _offset: u64, page: &[u8]) -> bool {
        Self::lsn(page) <= self.0.durable()
    }

    fn make_writable(&self, _offset: u64, page: &[u8]) {
        if let Err(error) = self.0.flush(Self::lsn(page)) {
            // The page may never be written, and whoever syncs would wait for it. Recovery can begin at once.
            tell(format_args!("octavo-lab: the log cannot be written, so the bank ends: {error}"));
            std::process::exit(1);
        }
    }
}

impl Bank {
    /// Opens the bank in a folder, and recovers it. Makes it first if there is none.
    pub fn open(manager: &Manager, folder: &Path, log_bytes: u64, scale: u64) -> Result<Self, Failure> {
        let (data, log) = (folder.join("bank.data"), folder.join("bank.log"));
        let mut pages = PageFile::open(manager, &data)?;
        let recovered = Log::recover(manager, &log, |end, words| redo(&pages, end, words))?;
        let is_new = recovered.is_none();
        let log = match recovered {
            Some(log) => {
                pages.file.sync()?;
                log.end_recovery()?;
                log
            }
            None => {
                // A bank without a log was not made to the end.
                pages.file.set_len_bytes(0)?;
                fill(&pages, scale)?;
                pages.file.sync()?;
                Log::make(manager, &log, log_bytes, scale)?
            }
        };
        let log = Arc::new(log);
        pages.file.set_write_gate(Some(Arc::new(Gate(Arc::clone(&log)))))?;
        let journal = Arc::clone(&log);
        pages.journal = Some(Box::new(move |pages| note_split(&journal, pages)));
        if is_new {
            let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| Failure::system(format!("cannot sync {}", folder.display()), error))?;
        }
        let bank = Self { pages, log, next: AtomicU64::new(1) };
        if !is_new {
            let audit = bank.audit(|_| ())?;
            bank.next.store(audit.last + 1, Ordering::Relaxed);
        }
        Ok(bank)
    }

    pub fn scale(&self) -> u64 {
        self.log.scale
    }

    /// The bytes of the file.
    pub fn file_bytes(&self) -> octavo::Result<u64> {
        self.pages.file.len_bytes()
    }

    fn tree<const N: usize>(&self, number: u64) -> Tree<'_, N> {
        Tree::new(&self.pages, number)
    }

    /// Makes a transfer, and waits until it is durable. Returns its number, and the account's new balance.
    pub fn transfer(&self, transfer: Transfer) -> octavo::Result<(u64, i64)> {
        self.log.admit()?;
        let (number, balance, end) = self.change(transfer)?;
        self.log.flush(end)?;
        Ok((number, balance))
    }

    /// Makes a transfer. Returns its number, the account's new balance, and the end of its record.
    fn change(&self, transfer: Transfer) -> octavo::Result<(u64, i64, u64)> {
        let Transfer { account, teller, branch, amount } = transfer;
        let mut accounts = self.tree::<ROW>(0).leaf(account)?;
        let mut tellers = self.tree::<ROW>(1).leaf(teller)?;
        let mut branches = self.tree::<ROW>(2).leaf(branch)?;
        // Relaxed: the numbers differ, and order nothing.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut history = self.tree::<PAST>(3).leaf_with_room(number)?;
        let change = Change {
            pages: [accounts.0, tellers.0, branches.0, history.0],
            keys: [account, teller, branch, number],
            amount,
        };
        let end = self.log.append(|redo, words| {
            let touched: [&Leaf<'_>; 4] = [&accounts, &tellers, &branches, &history];
            let first = touched.into_iter().filter(|leaf| leaf.1[0].lsn <= redo);
            write_record(words, first.map(|leaf| (leaf.0, &leaf.1[0])), Some(&change));
        });
        let nodes = [&mut accounts.1[0], &mut tellers.1[0], &mut branches.1[0], &mut history.1[0]];
        Ok((number, change.apply(nodes, end), end))
    }

    /// Makes checkpoints until the bank is told to end them. If one fails, so do the transfers.
    pub fn make_checkpoints(&self) {
        while self.log.needs_checkpoint() {
            if let Err(error) = self.checkpoint() {
                self.log.fail(error);
            }
        }
    }

    pub fn set_checkpoints_ended(&self, ended: bool) {
        self.log.set_ended(ended);
    }

    fn checkpoint(&self) -> octavo::Result<()> {
        let redo = self.log.begin_checkpoint();
        self.pages.file.sync()?;
        self.log.end_checkpoint(redo)
    }

    /// Adds up all rows. `each` gets the number of each transfer of the history.
    pub fn audit(&self, mut each: impl FnMut(u64)) -> octavo::Result<Audit> {
        let sum = |number| {
            let mut sum = 0;
            self.tree::<ROW>(number).scan(0, |_, row| {
                sum += row[0] as i64;
                true
            })?;
            octavo::Result::Ok(sum)
        };
        let mut audit = Audit { accounts: sum(0)?, tellers: sum(1)?, branches: sum(2)?, ..Audit::default() };
        self.tree::<PAST>(3).scan(0, |number, row| {
            audit.history += row[3] as i64;
            audit.transfers += 1;
            audit.last = number;
            each(number);
            true
        })?;
        Ok(audit)
    }
}

/// Makes the rows of a new bank.
fn fill(pages: &PageFile, scale: u64) -> octavo::Result<()> {
    pages.make_trees(TREES)?;
    for (number, rows) in [(0, ACCOUNTS), (1, TELLERS), (2, 1)] {
        let tree = Tree::<ROW>::new(pages, number);
        for key in 0..rows * scale {
            let mut row = [u64::from_le_bytes(*b"filler, "); ROW];
            row[0] = 0;
            tree.insert(key, &row)?;
        }
    }
    Ok(())
}

/// The four changes of a transfer.
struct Change {
    pages: [u64; 4],
    keys: [u64; 4],
    amount: i64,
}

impl Change {
    const WORDS: usize = 9;

    /// Changes the four pages. Returns the account's new balance.
    fn apply(&self, nodes: [&mut Node; 4], end: u64) -> i64 {
        let Self { keys, amount, .. } = *self;
        let [accounts, tellers, branches, history] = nodes;
        let mut balance = 0;
        // The account comes last, as its balance is the answer.
        for (node, key) in [(branches, keys[2]), (tellers, keys[1]), (accounts, keys[0])] {
            balance = add(node, key, amount);
            node.lsn = end;
        }
        remember(history, &keys, amount);
        history.lsn = end;
        balance
    }

    fn of(words: &[u64]) -> Self {
        let words: [u64; Self::WORDS] = words.try_into().expect("a change has so many words");
        let [a, b, c, d, e, f, g, h, amount] = words;
        Self { pages: [a, b, c, d], keys: [e, f, g, h], amount: amount as i64 }
    }
}

fn add(node: &mut Node, key: u64, amount: i64) -> i64 {
    let row = node.value_mut::<ROW>(key).expect("the leaf has the row");
    row[0] = (row[0] as i64 + amount) as u64;
    row[0] as i64
}

fn remember(node: &mut Node, keys: &[u64; 4], amount: i64) {
    let [account, teller, branch, number] = *keys;
    let has_room = node.insert::<PAST>(number, &[account, teller, branch, amount as u64, number]);
    assert!(has_room, "the leaf has room");
}

// --- records: the number of pages, the pages with their numbers, and a change or nothing ---

fn write_record<'n>(
    words: &mut Vec<u64>,
    pages: impl Iterator<Item = (u64, &'n Node)>,
    change: Option<&Change>,
) {
    let count = words.len();
    words.push(0);
    for (page, node) in pages {
        words[count] += 1;
        words.push(page);
        words.extend_from_slice(cast_slice(bytes_of(node)));
    }
    if let Some(Change { pages, keys, amount }) = change {
        words.extend_from_slice(pages);
        words.extend_from_slice(keys);
        words.push(*amount as u64);
    }
}

/// Puts the pages of a split into the log.
fn note_split(log: &Log, pages: &mut [(u64, &mut Node)]) {
    let end =
        log.append(|_, words| write_record(words, pages.iter().map(|(page, node)| (*page, &**node)), None));
    pages.iter_mut().for_each(|(_, node)| node.lsn = end);
}

/// Does again what a record says.
fn redo(pages: &PageFile, end: u64, words: &[u64]) -> octavo::Result<()> {
    let (images, change) = words[1..].split_at(words[0] as usize * (1 + NODE_WORDS));
    for image in images.chunks_exact(1 + NODE_WORDS) {
        pages.grow_to(image[0])?;
        let mut page = pages.exclusive(image[0])?;
        page[0] = *bytemuck::from_bytes(cast_slice(&image[1..]));
        page[0].lsn = end;
    }
    if change.is_empty() {
        return Ok(());
    }
    let change = Change::of(change);
    // The four pages differ: each tree has its own.
    let [mut a, mut b, mut c, mut d] = [
        pages.exclusive(change.pages[0])?,
        pages.exclusive(change.pages[1])?,
        pages.exclusive(change.pages[2])?,
        pages.exclusive(change.pages[3])?,
    ];
    change.apply([&mut a[0], &mut b[0], &mut c[0], &mut d[0]], end);
    Ok(())
}

#[cfg(test)]
mod tests {
    use octavo_measure::random::Random;

    use super::*;

    const LOG: u64 = 4 << 20;

    fn manager() -> Manager {
        Manager::builder().budget_bytes(16 << 20).background(false).build().unwrap()
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/var/tmp").unwrap()
    }

    /// Transfers of all accounts and tellers, the same for each seed.
    fn transfers(seed: u64) -> impl Iterator<Item = Transfer> {
        let mut random = Random::new(seed);
        std::iter::repeat_with(move || Transfer {
            account: random.below(ACCOUNTS as usize) as u64,
            teller: random.below(TELLERS as usize) as u64,
            branch: 0,
            amount: random.below(2000) as i64 - 1000,
        })
    }

    /// The pages of the data file as the device has them, with their LSNs.
    fn lsns(folder: &Path) -> Vec<u64> {
        let bytes = fs::read(folder.join("bank.data")).unwrap();
        bytes.chunks_exact(size_of::<Node>()).map(Gate::lsn).collect()
    }

    /// Recovers what a crash would leave now, after `spoil` has changed it.
    fn after_crash(from: &Path, spoil: impl Fn(&mut [u8])) -> Audit {
        let folder = folder();
        fs::copy(from.join("bank.log"), folder.path().join("bank.log")).unwrap();
        let mut data = fs::read(from.join("bank.data")).unwrap();
        spoil(&mut data);
        fs::write(folder.path().join("bank.data"), data).unwrap();
        let recovered = |_| Bank::open(&manager(), folder.path(), LOG, 1).unwrap().audit(|_| ()).unwrap();
        let [once, twice] = [(), ()].map(recovered);
        assert_eq!(once, twice, "a recovery changes nothing that was recovered");
        once
    }

    #[test]
    fn no_page_goes_to_the_file_before_its_log() {
        let (folder, manager) = (folder(), manager());
        let bank = Bank::open(&manager, folder.path(), LOG, 1).unwrap();
        for transfer in transfers(1).take(200) {
            bank.change(transfer).unwrap();
        }
        while manager.reclaim(1000).unwrap() > 0 {}
        assert_eq!(bank.log.durable(), 0);
        assert!(lsns(folder.path()).iter().all(|lsn| *lsn == 0));
        assert_eq!(after_crash(folder.path(), |_| ()), Audit::default(), "nothing was durable");
        bank.pages.file.sync().unwrap();
        assert!(lsns(folder.path()).iter().filter(|lsn| **lsn > 0).count() > 150);
        assert!(lsns(folder.path()).iter().all(|lsn| *lsn <= bank.log.durable()));
        let audit = after_crash(folder.path(), |_| ());
        assert!(audit.adds_up() && audit.transfers == 200, "{audit:?}");
    }

    #[test]
    fn a_crash_leaves_what_was_durable_even_if_it_tears_pages() {
        let (folder, manager) = (folder(), manager());
        let bank = Bank::open(&manager, folder.path(), LOG, 1).unwrap();
        let (mut transfers, mut random, mut made, mut redo) = (transfers(2), Random::new(3), 0, 0);
        for step in 0..12 {
            let (mut end, count) = (0, 1 + random.below(300) as u64);
            for transfer in transfers.by_ref().take(count as usize) {
                (_, _, end) = bank.change(transfer).unwrap();
            }
            if step % 2 == 0 {
                while manager.reclaim(1000).unwrap() > 0 {}
            }
            let before = after_crash(folder.path(), |_| ());
            assert!(before.adds_up() && (made..=made + count).contains(&before.transfers), "{before:?}");
            bank.log.flush(end).unwrap();
            made += count;
            if step % 3 == 1 {
                bank.pages.file.sync().unwrap();
            }
            if step % 4 == 3 {
                bank.checkpoint().unwrap();
                redo = bank.log.durable();
            }
            let after = after_crash(folder.path(), |data| {
                // What was written since the checkpoint may be torn at any sector.
                for page in data.chunks_exact_mut(size_of::<Node>()).filter(|page| Gate::lsn(page) > redo) {
                    page[512..1024].fill(0xee);
                }
            });
            assert!(after.adds_up() && after.transfers == made, "step {step}: {after:?}");
        }
    }

    #[test]
    fn a_bank_outlives_many_laps_of_its_log() {
        let folder = folder();
        let mut made = 0;
        for life in 0..3 {
            let manager = manager();
            let bank = Bank::open(&manager, folder.path(), LOG, 1).unwrap();
            for (number, transfer) in transfers(life).take(3000).enumerate() {
                let (.., end) = bank.change(transfer).unwrap();
                made += 1;
                if number % 100 == 99 {
                    bank.log.flush(end).unwrap();
                }
                if number % 500 == 499 {
                    bank.checkpoint().unwrap();
                }
            }
            assert!(bank.log.durable() > 2 * LOG, "the log has gone round");
            let audit = after_crash(folder.path(), |_| ());
            assert!(audit.adds_up() && audit.transfers == made, "{audit:?}");
        }
    }
}
