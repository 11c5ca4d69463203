//! The loop that a mover runs, copied into the program byte by byte.
//!
//! The code uses no stack and no address of its own. It keeps the mailbox's address in `rbx` and the number
//! of the last batch in `r12d`. System calls change `rax`, `rcx` and `r11` only.

use std::arch::global_asm;

use crate::mailbox::{CALLS, CALLS_AT, COUNT_AT, INTERVAL_AT, REPLY_AT, WAITING_AT, WATCHED_AT};

global_asm!(
    ".pushsection .rodata",
    ".global octavo_mover_code",
    ".hidden octavo_mover_code",
    ".global octavo_mover_code_end",
    ".hidden octavo_mover_code_end",
    ".balign 16",
    "octavo_mover_code:",
    // Wait for another batch. The futex is shared, since the waker has other memory.
    "2:  mov r13d, [rbx]",
    "    cmp r13d, r12d",
    "    jne 3f",
    "    mov eax, {futex}",
    "    mov rdi, rbx",
    "    xor esi, esi",
    "    mov edx, r12d",
    "    lea r10, [rbx + {interval_at}]",
    "    xor r8d, r8d",
    "    xor r9d, r9d",
    "    syscall",
    "    cmp rax, -{timed_out}",
    "    jne 2b",
    // No request came for a while: end if the runner or the program has ended.
    "    mov eax, {poll}",
    "    lea rdi, [rbx + {watched_at}]",
    "    mov esi, 2",
    "    xor edx, edx",
    "    syscall",
    "    test eax, eax",
    "    jle 2b",
    "    mov eax, {exit_group}",
    "    xor edi, edi",
    "    syscall",
    "    ud2",
    // Make the calls. Whatever count the mailbox holds, the loop stays inside the mailbox.
    "3:  mov r12d, r13d",
    "    mov r14d, [rbx + {count_at}]",
    "    mov eax, {calls}",
    "    cmp r14d, eax",
    "    cmova r14d, eax",
    "    lea r15, [rbx + {calls_at}]",
    "4:  test r14d, r14d",
    "    jz 5f",
    "    mov rax, [r15]",
    "    mov rdi, [r15 + 8]",
    "    mov rsi, [r15 + 16]",
    "    mov rdx, [r15 + 24]",
    "    mov r10, [r15 + 32]",
    "    mov r8, [r15 + 40]",
    "    mov r9, [r15 + 48]",
    "    syscall",
    "    mov [r15 + 56], rax",
    "    add r15, 64",
    "    dec r14d",
    "    jmp 4b",
    // Publish the answers. The exchange is a full fence: either the runner sees the reply, or the loop sees
    // that the runner waits.
    "5:  mov eax, r12d",
    "    xchg [rbx + {reply_at}], eax",
    "    cmp dword ptr [rbx + {waiting_at}], 0",
    "    je 2b",
    "    mov eax, {futex}",
    "    lea rdi, [rbx + {reply_at}]",
    "    mov esi, 1",
    "    mov edx, 1",
    "    xor r10d, r10d",
    "    xor r8d, r8d",
    "    xor r9d, r9d",
    "    syscall",
    "    jmp 2b",
    "octavo_mover_code_end:",
    ".popsection",
    futex = const libc::SYS_futex,
    poll = const libc::SYS_poll,
    exit_group = const libc::SYS_exit_group,
    timed_out = const libc::ETIMEDOUT,
    interval_at = const INTERVAL_AT,
    watched_at = const WATCHED_AT,
    calls = const CALLS,
    count_at = const COUNT_AT,
    calls_at = const CALLS_AT,
    reply_at = const REPLY_AT,
    waiting_at = const WAITING_AT,
);

unsafe extern "C" {
    static octavo_mover_code: u8;
    static octavo_mover_code_end: u8;
}

/// Returns the bytes of the loop. Its entry is the first byte.
pub fn bytes() -> &'static [u8] {
    let (start, end) = (&raw const octavo_mover_code, &raw const octavo_mover_code_end);
    // SAFETY: both labels are in one read-only section, the second after the first, as written above. The
    // bytes between them never change.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loop_fits_its_page() {
        assert!((64..4096).contains(&super::bytes().len()));
    }
}
