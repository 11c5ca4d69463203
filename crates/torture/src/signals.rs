//! Handlers of SIGSEGV and SIGBUS, and probes: single loads and stores that may fault.
//!
//! A probe tells the handler everything in registers: a mark, the address that it accesses, and where to
//! continue. The handler treats a fault as the probe's only if mark and address match. Any other fault ends
//! the program with a sentence. The handler needs no thread-local memory and no lock.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr;

use crate::finding::{insist, last_error, report};
use crate::memory::OwnMapping;

/// The mark of a probe in a register.
const MARK: u64 = 0x70be_70be_0c7a_0001;
/// `SEGV_ACCERR` of the kernel's siginfo.h: mapped, but without permission.
const WITHOUT_PERMISSION: c_int = 2;

/// Installs the handlers, which run on the alternate stack if the thread has one.
pub fn install() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        set_handler(signal, faulted);
    }
}

/// A handler with the arguments of SA_SIGINFO.
pub type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs a handler.
pub fn set_handler(signal: c_int, handler: Handler) {
    // SAFETY: zeros are a valid `sigaction`, and the handler has the signature that SA_SIGINFO asks for.
    let result = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &action, ptr::null_mut())
    };
    insist!(result == 0, "sigaction was refused: {}", last_error());
}

/// Runs this thread's signal handlers on a stack in a mapping until the value is dropped.
#[derive(Debug)]
pub struct AlternateStack {
    before: libc::stack_t,
}

impl AlternateStack {
    /// Sets the alternate stack. While a handler runs, it is in the mapping's bytes from `offset` on.
    pub fn new(mapping: &OwnMapping, offset: usize, bytes: usize) -> Self {
        let stack =
            libc::stack_t { ss_sp: mapping.pointer(offset, bytes).cast(), ss_flags: 0, ss_size: bytes };
        // SAFETY: zeros are a valid `stack_t`. The new stack lies in a mapping that no reference borrows; the
        // old one is put back before this thread ends.
        unsafe {
            let mut before: libc::stack_t = zeroed();
            let result = libc::sigaltstack(&stack, &mut before);
            insist!(result == 0, "sigaltstack was refused: {}", last_error());
            Self { before }
        }
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: this is the stack that the thread had before, which the standard library keeps until the
        // thread's end.
        let result = unsafe { libc::sigaltstack(&self.before, ptr::null_mut()) };
        insist!(result == 0, "sigaltstack was refused at the end: {}", last_error());
    }
}

/// Returns whether this code runs on the thread's alternate stack.
pub fn on_alternate_stack() -> bool {
    // SAFETY: zeros are a valid `stack_t`; the call only writes it.
    unsafe {
        let mut stack: libc::stack_t = zeroed();
        libc::sigaltstack(ptr::null(), &mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0
    }
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    Done,
    Faulted,
}

/// Stores a word, if that is permitted.
pub fn try_store(mapping: &OwnMapping, offset: usize, word: u64) -> Probed {
    let at = mapping.pointer(offset, 8);
    let faulted: u64;
    // SAFETY: the word is inside a mapping that is reached by atomics only. If the store faults, the handler
    // continues behind it, and changes only the registers named here.
    unsafe {
        std::arch::asm!(
            "lea rax, [rip + 3f]",
            "xor ecx, ecx",
            "mov qword ptr [rdi], rsi",
            "3:",
            in("rdi") at, in("rsi") word, in("rdx") MARK,
            out("rax") _, out("rcx") faulted, options(nostack),
        );
    }
    if faulted == 0 { Probed::Done } else { Probed::Faulted }
}

/// Loads a word, if that is permitted.
pub fn try_load(mapping: &OwnMapping, offset: usize) -> (Probed, u64) {
    let at = mapping.pointer(offset, 8);
    let (faulted, word): (u64, u64);
    // SAFETY: as in `try_store`.
    unsafe {
        std::arch::asm!(
            "lea rax, [rip + 3f]",
            "xor ecx, ecx",
            "mov rsi, qword ptr [rdi]",
            "3:",
            in("rdi") at, inout("rsi") 0u64 => word, in("rdx") MARK,
            out("rax") _, out("rcx") faulted, options(nostack),
        );
    }
    (if faulted == 0 { Probed::Done } else { Probed::Faulted }, word)
}

extern "C" fn faulted(signal: c_int, information: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both structures, which live until the handler returns.
    let (address, code, registers) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        ((*information).si_addr() as usize, (*information).si_code, &mut (*context).uc_mcontext.gregs)
    };
    let register = |which: c_int| registers[which as usize] as u64;
    let is_probe = register(libc::REG_RDX) == MARK
        && register(libc::REG_RDI) == address as u64
        && signal == libc::SIGSEGV;
    if !is_probe {
        let instruction = register(libc::REG_RIP);
        let name = if signal == libc::SIGBUS { "SIGBUS" } else { "SIGSEGV" };
        report(format_args!(
            "the instruction at {instruction:#x} got {name} (code {code}) for {address:#x}, which should be accessible."
        ));
    }
    insist!(code == WITHOUT_PERMISSION, "the fault at {address:#x} has code {code} instead of SEGV_ACCERR.");
    insist!(on_alternate_stack(), "the handler of the fault at {address:#x} is not on the alternate stack.");
    registers[libc::REG_RIP as usize] = registers[libc::REG_RAX as usize];
    registers[libc::REG_RCX as usize] = 1;
}
