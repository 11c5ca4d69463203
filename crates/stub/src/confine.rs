//! What a mover may do: a filter of system calls, and no capabilities.

/// The calls of a process that moves pages.
pub const MOVES: [libc::c_long; 8] = [
    libc::SYS_futex,
    libc::SYS_ioctl,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_poll,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
];
/// The calls of a process that maps a file.
pub const MAPS: [libc::c_long; 10] = [
    libc::SYS_futex,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_poll,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
];
const ARCHITECTURE_X86_64: u32 = 0xc000_003e;

/// Returns the bytes of the filter's program. Every other call fails with `EPERM`.
pub fn filter(allowed: &[libc::c_long]) -> Vec<u8> {
    let load = |offset| (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0u8, 0u8, offset);
    let jump_if = |value: u32, yes: u8, no: u8| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value);
    let answer = |value: u32| (libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The filter's input is the call's number, then the architecture that the number belongs to.
    let mut program = vec![load(4), jump_if(ARCHITECTURE_X86_64, 1, 0)];
    program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    program.push(load(0));
    for (index, call) in allowed.iter().enumerate() {
        program.push(jump_if(*call as u32, (allowed.len() - index) as u8, 0));
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let mut bytes = Vec::new();
    for (code, yes, no, value) in program {
        bytes.extend((code as u16).to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

/// The header that `capset` takes: version 3, the calling task. The sets that go with it are zeros.
pub const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];
