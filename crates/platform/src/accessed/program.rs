//! The two programs that run in the kernel, as instructions of its virtual machine (eBPF, RFC 9669).
//!
//! ```text
//!   locate   page_offset_base ──► where the kernel sees all memory
//!   walk     process ──► its memory ──► top table ──► for each run: table by table, to the entries of its pages
//! ```
//!
//! A run lies within one last table, so its entries are read at once. Successive runs mostly share the last
//! table, and then no other table is read.
//!
//! Both programs work on words that they share with this process (`words`). They change nothing else. Before
//! they run, the kernel's verifier has proved that they end and that they touch no memory but these words.
//! They read other memory through a call that fails if nothing is mapped there. A table that was freed
//! meanwhile gives a wrong entry, and does no other harm.

/// An instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// The source in the high half, the destination in the low half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Words that programs and this process share, by their index.
pub(super) mod words {
    /// The process to look at.
    pub const PID: usize = 0;
    /// The tables between the top and a page: 4, or 5.
    pub const LEVELS: usize = 1;
    /// The address at which the kernel maps all memory in one piece.
    pub const MEMORY: usize = 2;
    /// The address of a symbol, in the program that locates one.
    pub const SYMBOL: usize = 3;
    /// The name of that symbol, in [`NAME_WORDS`] words.
    pub const NAME: usize = 4;
    pub const NAME_WORDS: usize = 4;
    /// The process's top table.
    pub const TOP: usize = NAME + NAME_WORDS;
    /// The number of runs.
    pub const COUNT: usize = TOP + 1;
    /// The runs: the address of the first page, and the number of pages in the bits below a page.
    pub const RUNS: usize = COUNT + 1;
    /// The entries of all runs, one after another.
    pub const ENTRIES: usize = RUNS + super::MOST_RUNS;
    // The verifier assumes that the last run may begin behind all pages, so there is room for its entries.
    pub const ALL: usize = ENTRIES + super::MOST_PAGES + super::TABLE_PAGES;
}

/// The most runs of one call, and the most pages of all of them. The verifier simulates each run.
pub(super) const MOST_RUNS: usize = 256;
pub(super) const MOST_PAGES: usize = 4 * TABLE_PAGES;
/// The entries of a table.
pub(super) const TABLE_PAGES: usize = 1 << LEVEL_BITS;

/// What the programs need to know of this kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelLayout {
    /// The numbers of the kernel's functions that find a process by its number here, and release it.
    pub(super) find_task: u32,
    pub(super) release_task: u32,
    /// The offsets in bytes of a process's memory, and of the memory's top table.
    pub(super) memory_of_task: i16,
    pub(super) table_of_memory: i16,
}

// Registers: R0 has results, R1 to R5 arguments, R6 to R9 outlive calls, and R10 is the end of the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const STACK: u8 = 10;

/// The kernel's calls that programs may make, by number.
const PROBE_READ_KERNEL: i32 = 113;
const KALLSYMS_LOOKUP_NAME: i32 = 179;

const WORD: i16 = 8;
/// Words on the stack.
const INDEX: i16 = -8;
const ENTRY: i16 = -16;
/// The last run's address bits above those of its last table; then the address of that table, or 0.
const BLOCK: i16 = -24;
const TABLE: i16 = -32;
/// The number of pages that have been read so far.
const DONE: i16 = -40;

/// Bits of a table's entry: it is present, and it maps a large page.
const PRESENT: i32 = 1;
const LARGE: i32 = 1 << 7;
/// The number of address bits for each level, and within a page.
const LEVEL_BITS: i32 = 9;
const PAGE_BITS: i32 = 12;
/// Bits of an entry above those of an address.
const HIGH_BITS: i32 = 12;

/// The result if there is no such process, or if it has no memory any more.
pub(super) const NO_PROCESS: u32 = 1;

/// The target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Found,
    Release,
    HasMemory,
    Next,
    FourLevels,
    Missing,
    Walked,
    Known,
    End,
}

/// A program under construction.
#[derive(Default)]
struct ProgramBuilder {
    instructions: Vec<Instruction>,
    labels: Vec<(Label, usize)>,
    jumps: Vec<(usize, Label)>,
}

impl ProgramBuilder {
    fn add(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { code, registers: from << 4 | to, offset, immediate });
    }

    /// Puts the address of a shared word into a register.
    fn shared(&mut self, to: u8, map: i32, word: usize) {
        const ADDRESS_IN_MAP: u8 = 2;
        self.add(0x18, to, ADDRESS_IN_MAP, 0, map);
        self.add(0, 0, 0, 0, (word * WORD as usize) as i32);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.add(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.add(0xb7, to, 0, 0, value);
    }

    fn add_value(&mut self, to: u8, value: i32) {
        self.add(0x07, to, 0, 0, value);
    }

    fn add_register(&mut self, to: u8, from: u8) {
        self.add(0x0f, to, from, 0, 0);
    }

    fn and(&mut self, to: u8, value: i32) {
        self.add(0x57, to, 0, 0, value);
    }

    fn shift_left(&mut self, to: u8, bits: i32) {
        self.add(0x67, to, 0, 0, bits);
    }

    fn shift_right(&mut self, to: u8, bits: i32) {
        self.add(0x77, to, 0, 0, bits);
    }

    fn load(&mut self, to: u8, from: u8, offset: i16) {
        self.add(0x79, to, from, offset, 0);
    }

    fn store(&mut self, to: u8, offset: i16, from: u8) {
        self.add(0x7b, to, from, offset, 0);
    }

    fn call(&mut self, helper: i32) {
        self.add(0x85, 0, 0, 0, helper);
    }

    /// Calls a function of the kernel.
    fn call_kernel(&mut self, function: u32) {
        const OF_KERNEL: u8 = 2;
        self.add(0x85, 0, OF_KERNEL, 0, function as i32);
    }

    fn jump_if_zero(&mut self, register: u8, to: Label) {
        self.jump(0x15, register, 0, 0, to);
    }

    fn jump_unless_zero(&mut self, register: u8, to: Label) {
        self.jump(0x55, register, 0, 0, to);
    }

    /// Jumps if `register` is at most `other`.
    fn jump_if_at_most(&mut self, register: u8, other: u8, to: Label) {
        self.jump(0xbd, register, other, 0, to);
    }

    fn jump_if_equal(&mut self, register: u8, other: u8, to: Label) {
        self.jump(0x1d, register, other, 0, to);
    }

    fn jump_if_above(&mut self, register: u8, value: i32, to: Label) {
        self.jump(0x25, register, 0, value, to);
    }

    fn jump_always(&mut self, to: Label) {
        self.jump(0x05, 0, 0, 0, to);
    }

    fn jump(&mut self, code: u8, register: u8, with: u8, value: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.add(code, register, with, 0, value);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.instructions.len()));
    }

    fn exit(&mut self, value: u32) {
        self.set(R0, value as i32);
        self.add(0x95, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels.iter().find(|(found, _)| *found == label).expect("each label is placed").1;
            self.instructions[at].offset = (to as isize - at as isize - 1) as i16;
        }
        self.instructions
    }
}

/// The program that finds where the kernel maps all memory: the value of the variable that the shared words
/// name. Its result is not 0 if the kernel has no such variable.
pub(super) fn locate(map: i32, name_bytes: usize) -> Vec<Instruction> {
    let mut program = ProgramBuilder::default();
    program.shared(R1, map, words::NAME);
    program.set(R2, name_bytes as i32);
    program.set(R3, 0);
    program.shared(R4, map, words::SYMBOL);
    program.call(KALLSYMS_LOOKUP_NAME);
    program.jump_unless_zero(R0, Label::End);
    program.shared(R3, map, words::SYMBOL);
    program.load(R3, R3, 0);
    program.shared(R1, map, words::MEMORY);
    program.set(R2, i32::from(WORD));
    program.call(PROBE_READ_KERNEL);
    program.label(Label::End);
    program.add(0x95, 0, 0, 0, 0);
    program.finish()
}

/// The program that finds the entries of runs. Its result is 0, or [`NO_PROCESS`]. Entries of pages without a
/// table are 0.
pub(super) fn walk(map: i32, kernel: KernelLayout) -> Vec<Instruction> {
    let mut program = ProgramBuilder::default();
    // The top table, while the process is held.
    program.shared(R6, map, words::PID);
    program.load(R1, R6, 0);
    program.call_kernel(kernel.find_task);
    program.jump_unless_zero(R0, Label::Found);
    program.exit(NO_PROCESS);
    program.label(Label::Found);
    program.copy(R7, R0);
    program.load(R1, R0, kernel.memory_of_task);
    program.set(R8, 0);
    program.jump_if_zero(R1, Label::Release);
    program.load(R8, R1, kernel.table_of_memory);
    program.label(Label::Release);
    program.copy(R1, R7);
    program.call_kernel(kernel.release_task);
    program.jump_unless_zero(R8, Label::HasMemory);
    program.exit(NO_PROCESS);
    program.label(Label::HasMemory);
    program.shared(R1, map, words::TOP);
    program.store(R1, 0, R8);
    // The loop over all runs begins here.
    program.set(R1, 0);
    program.store(STACK, INDEX, R1);
    program.store(STACK, TABLE, R1);
    program.store(STACK, DONE, R1);
    program.set(R1, -1);
    program.store(STACK, BLOCK, R1);
    program.label(Label::Next);
    program.load(R7, STACK, INDEX);
    program.shared(R1, map, words::COUNT);
    program.load(R1, R1, 0);
    program.jump_if_at_most(R1, R7, Label::End);
    program.shift_left(R7, 3);
    program.shared(R1, map, words::RUNS);
    program.add_register(R7, R1);
    program.load(R8, R7, 0);
    block_of_run(&mut program);
    program.load(R2, STACK, BLOCK);
    program.jump_if_equal(R1, R2, Label::Known);
    program.store(STACK, BLOCK, R1);
    program.shared(R1, map, words::TOP);
    program.load(R6, R1, 0);
    program.shared(R1, map, words::MEMORY);
    program.load(R9, R1, 0);
    program.shared(R1, map, words::LEVELS);
    program.load(R1, R1, 0);
    program.jump(0x15, R1, 0, 4, Label::FourLevels);
    step(&mut program, 4);
    program.label(Label::FourLevels);
    for level in (1..4).rev() {
        step(&mut program, level);
    }
    program.jump_always(Label::Walked);
    program.label(Label::Missing);
    program.set(R6, 0);
    program.label(Label::Walked);
    program.store(STACK, TABLE, R6);
    program.label(Label::Known);
    program.load(R6, STACK, TABLE);
    address_of_entry(&mut program, 0);
    // The number of the run's pages, at most as many as a table has entries.
    program.copy(R2, R8);
    program.and(R2, (1 << PAGE_BITS) - 1);
    program.jump_if_above(R2, TABLE_PAGES as i32, Label::End);
    program.load(R4, STACK, DONE);
    program.jump_if_above(R4, MOST_PAGES as i32, Label::End);
    program.shared(R1, map, words::ENTRIES);
    program.copy(R5, R4);
    program.shift_left(R5, 3);
    program.add_register(R1, R5);
    program.add_register(R4, R2);
    program.store(STACK, DONE, R4);
    program.shift_left(R2, 3);
    // If there is no table, the call fails and writes zeros.
    program.call(PROBE_READ_KERNEL);
    program.load(R1, STACK, INDEX);
    program.add_value(R1, 1);
    program.store(STACK, INDEX, R1);
    // There may be more runs if R1 < MOST_RUNS.
    program.jump(0xa5, R1, 0, MOST_RUNS as i32, Label::Next);
    program.label(Label::End);
    program.exit(0);
    program.finish()
}

/// Sets R1 to the address bits of the run R8 above those of its last table.
fn block_of_run(program: &mut ProgramBuilder) {
    program.copy(R1, R8);
    program.shift_right(R1, PAGE_BITS + LEVEL_BITS);
}

/// Sets R3 to the address of the run R8's entry in the table R6.
fn address_of_entry(program: &mut ProgramBuilder, level: i32) {
    program.copy(R3, R8);
    program.shift_right(R3, PAGE_BITS + level * LEVEL_BITS);
    program.and(R3, (1 << LEVEL_BITS) - 1);
    program.shift_left(R3, 3);
    program.add_register(R3, R6);
}

/// Reads the run R8's entry in the table R6, and sets R6 to the next table. R9 is the address of all memory.
fn step(program: &mut ProgramBuilder, level: i32) {
    address_of_entry(program, level);
    program.copy(R1, STACK);
    program.add_value(R1, i32::from(ENTRY));
    program.set(R2, i32::from(WORD));
    // If the call fails, it writes zero.
    program.call(PROBE_READ_KERNEL);
    program.load(R6, STACK, ENTRY);
    program.copy(R1, R6);
    program.and(R1, PRESENT);
    program.jump_if_zero(R1, Label::Missing);
    program.copy(R1, R6);
    program.and(R1, LARGE);
    program.jump_unless_zero(R1, Label::Missing);
    // Keep only the bits of an address.
    program.shift_left(R6, HIGH_BITS);
    program.shift_right(R6, HIGH_BITS + PAGE_BITS);
    program.shift_left(R6, PAGE_BITS);
    program.add_register(R6, R9);
}
