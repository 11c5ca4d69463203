//! The program's filter: which of its calls the runner gets to see.
//!
//! The filter looks at the advice itself, since a report costs some 50 µs, and a look in the filter 8 ns.

use octavo_platform::seccomp_listener::{Asked, X86, X86_64};
use octavo_stub::UNREPORTED;

/// `MADV_DONTNEED_LOCKED`, `MADV_COLLAPSE` and `MADV_GUARD_INSTALL`, which the libc crate does not name.
pub(crate) const DONTNEED_LOCKED: i32 = 24;
pub(crate) const COLLAPSE: i32 = 25;
pub(crate) const GUARD_INSTALL: i32 = 102;

/// The advice that matters: what drops pages, what a file mapping refuses, and what sets a flag.
const ADVICE: [i32; 10] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    libc::MADV_DONTFORK,
    libc::MADV_MERGEABLE,
    libc::MADV_DONTDUMP,
    libc::MADV_WIPEONFORK,
    DONTNEED_LOCKED,
    COLLAPSE,
    GUARD_INSTALL,
];

/// What a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Advise {
        start: u64,
        len: u64,
        advice: i32,
    },
    Remap {
        old: u64,
        len: u64,
        new_len: u64,
        flags: u64,
        new: u64,
    },
    /// It advises by `process_madvise`, which kernels know for few advices.
    AdviseProcess,
    /// It locks memory, or gives it a protection key.
    Mark,
    /// From now on a device may write to its memory at any time, or it watches its memory itself.
    Pin,
}

/// The numbers of calls in one architecture.
struct Numbers {
    madvise: u32,
    mremap: u32,
    process_madvise: u32,
    marks: [u32; 4],
    pins: [u32; 3],
}

const OF_X86_64: Numbers = Numbers {
    madvise: 28,
    mremap: 25,
    process_madvise: 440,
    // mlock, mlock2, mlockall, pkey_mprotect
    marks: [149, 325, 151, 329],
    // io_setup, io_uring_setup, userfaultfd
    pins: [206, 425, 323],
};
const OF_X86: Numbers = Numbers {
    madvise: 219,
    mremap: 163,
    process_madvise: 440,
    marks: [150, 376, 152, 380],
    pins: [245, 425, 374],
};
/// This bit in a number of x86-64 says that the call is of x32.
const X32: u32 = 0x4000_0000;

/// Returns what a call asks for.
pub(crate) fn wish(asked: &Asked) -> Wish {
    let numbers = if asked.architecture == X86 { OF_X86 } else { OF_X86_64 };
    let number = asked.number as u32 & !X32;
    let [first, second, third, fourth, fifth, _] = asked.arguments;
    if number == numbers.madvise {
        Wish::Advise { start: first, len: second, advice: third as i32 }
    } else if number == numbers.mremap {
        Wish::Remap { old: first, len: second, new_len: third, flags: fourth, new: fifth }
    } else if number == numbers.process_madvise {
        Wish::AdviseProcess
    } else if numbers.pins.contains(&number) {
        Wish::Pin
    } else {
        Wish::Mark
    }
}

/// A statement: code, where to jump if the comparison holds and if not, and a value.
type Statement = (u32, u8, u8, u32);

const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const SIXTH_AT: u32 = 56;
const REPORT: Statement = (libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF);
const ALLOW: Statement = (libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW);

fn load(at: u32) -> Statement {
    (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at)
}

/// Runs the next `len` statements only if the loaded word is `value`.
fn only_if(value: u32, len: usize) -> Statement {
    (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, len as u8, value)
}

fn report_if(value: u32) -> [Statement; 2] {
    [only_if(value, 1), REPORT]
}

/// Reports a call if this argument, counted from 0, is one of the advices.
fn report_if_advice(argument: u32) -> Vec<Statement> {
    let mut all = vec![load(16 + 8 * argument)];
    all.extend(ADVICE.into_iter().flat_map(|advice| report_if(advice as u32)));
    all.push(ALLOW);
    all
}

/// The statements for one architecture. They always end the filter.
fn of_one(numbers: &Numbers) -> Vec<Statement> {
    let [low, high] = [UNREPORTED as u32, (UNREPORTED >> 32) as u32];
    let mut all = vec![load(SIXTH_AT), only_if(low, 3), load(SIXTH_AT + 4), only_if(high, 1), ALLOW];
    all.extend([load(NUMBER_AT), (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, !X32)]);
    all.extend(numbers.marks.iter().chain(&numbers.pins).flat_map(|number| report_if(*number)));
    all.extend(report_if(numbers.mremap));
    for (number, argument) in [(numbers.madvise, 2), (numbers.process_madvise, 3)] {
        let inner = report_if_advice(argument);
        all.push(only_if(number, inner.len()));
        all.extend(inner);
    }
    all.push(ALLOW);
    all
}

/// Returns the filter as an array of the kernel's `struct sock_filter`.
pub(crate) fn program() -> Vec<u8> {
    let mut all = vec![load(ARCHITECTURE_AT)];
    for (architecture, numbers) in [(X86_64, OF_X86_64), (X86, OF_X86)] {
        let inner = of_one(&numbers);
        all.push(only_if(architecture, inner.len()));
        all.extend(inner);
    }
    all.push(ALLOW);
    let bytes = |(code, yes, no, value): Statement| {
        let [low, high] = (code as u16).to_ne_bytes();
        let value = value.to_ne_bytes();
        [low, high, yes, no, value[0], value[1], value[2], value[3]]
    };
    all.into_iter().flat_map(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does. Returns whether it reports.
    fn reports(number: u32, architecture: u32, arguments: [u64; 6]) -> bool {
        let mut input = Vec::new();
        input.extend(number.to_ne_bytes());
        input.extend(architecture.to_ne_bytes());
        input.extend(0_u64.to_ne_bytes());
        arguments.iter().for_each(|argument| input.extend(argument.to_ne_bytes()));
        let program = program();
        let (mut at, mut word) = (0, 0_u32);
        loop {
            let statement = &program[8 * at..8 * at + 8];
            let code = u32::from(u16::from_ne_bytes([statement[0], statement[1]]));
            let value = u32::from_ne_bytes(statement[4..].try_into().unwrap());
            at += 1;
            match code & 7 {
                libc::BPF_LD => {
                    word = u32::from_ne_bytes(input[value as usize..][..4].try_into().unwrap());
                }
                libc::BPF_ALU => word &= value,
                libc::BPF_JMP => at += usize::from(statement[if word == value { 2 } else { 3 }]),
                _ => return value == libc::SECCOMP_RET_USER_NOTIF,
            }
        }
    }

    #[test]
    fn the_calls_of_every_architecture_are_reported_and_others_are_not() {
        for (architecture, numbers, flag) in
            [(X86_64, &OF_X86_64, 0), (X86_64, &OF_X86_64, X32), (X86, &OF_X86, 0)]
        {
            let call = |number: u32, arguments| reports(number | flag, architecture, arguments);
            for number in numbers.marks.iter().chain(&numbers.pins).chain([&numbers.mremap]) {
                assert!(call(*number, [0; 6]), "{number}");
            }
            for advice in 0..128 {
                let expected = ADVICE.contains(&(advice as i32));
                assert_eq!(call(numbers.madvise, [1, 2, advice, 0, 0, 0]), expected);
                assert_eq!(call(numbers.process_madvise, [1, 2, 3, advice, 0, 0]), expected);
            }
            for number in [0, 1, 9, 11, 56, 57, 400] {
                let is_one =
                    *numbers.marks.iter().chain(&numbers.pins).find(|one| **one == number).unwrap_or(&0) != 0;
                assert_eq!(call(number, [4; 6]), is_one, "{number}");
            }
        }
        assert!(!reports(OF_X86_64.mremap, X86_64, [0, 0, 0, 0, 0, UNREPORTED]), "a mapper's own");
        assert!(reports(OF_X86_64.mremap, X86_64, [0, 0, 0, 0, 0, UNREPORTED ^ 1 << 40]));
        assert!(!reports(OF_X86_64.mremap, 5, [0; 6]), "another architecture");
        assert!(program().len() / 8 < 4096);
    }
}
