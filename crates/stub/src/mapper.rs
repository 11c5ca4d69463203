//! A mapper: a process like a mover, which maps a file of the runner's in the program's memory, and gives
//! advice there. It needs no userfaultfd.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::{InjectError, MoverError};
use crate::helper::Helper;
use crate::inject::{Beside, on_own_thread, put_beside};
use crate::listen;
use crate::mailbox::Call;
use crate::prepare;

/// The name of movers and mappers in lists of processes.
pub const MAPPER_NAME: &str = "octavo-mover";

/// Called with the number of a thread right after that thread was told to stop.
pub type Interrupted = Box<dyn FnMut(u32) + Send>;

/// A process that shares a program's memory, and maps a file there. See the [crate](crate).
///
/// Any thread may use it; batches run one after another. Dropping it [ends](Mapper::end) the process.
#[derive(Debug)]
pub struct Mapper {
    helper: Helper,
    program: u32,
    file: u64,
}

impl Mapper {
    /// Puts a mapper into a running process, and gives it a file. One thread of the program is stopped for
    /// some tens of microseconds.
    ///
    /// `filters` is how many seccomp filters the runner itself has put into the process. A thread that waits
    /// for the answer of such a filter stops only once it gets one: `interrupted` may give it.
    ///
    /// Fails with an error that has a [kind](crate::InjectErrorKind). The program then runs as before.
    pub fn inject(
        pid: u32,
        file: BorrowedFd<'_>,
        filters: u32,
        mut interrupted: Interrupted,
    ) -> Result<Self, InjectError> {
        let file = file.try_clone_to_owned().map_err(|error| InjectError::system("sharing a file", error))?;
        on_own_thread(move || {
            let prepare = |child: &_, at, process: &OwnedFd| {
                prepare::prepare_for_files(pid, child, at, process, file.as_fd())
            };
            let Beside { process, is_our_child, parts: (layout, mailbox, number), .. } =
                put_beside(pid, filters, &mut interrupted, prepare)?;
            let helper = Helper::new(process, layout, mailbox, is_our_child);
            Ok(Self { helper, program: pid, file: number })
        })
    }

    /// Makes a thread of the program install a seccomp filter with a listener in all threads of the program,
    /// and returns the listener's descriptor. The program's own descriptors are not touched.
    ///
    /// `filter` is an array of the kernel's `struct sock_filter`. It must allow the mapper's calls no more
    /// than others: a mapper that exists already is not subject to it.
    ///
    /// Fails like [`inject`](Self::inject). The program then has no filter, but may have lost the right to
    /// gain privileges by `execve`.
    pub fn listen(&self, filter: &[u8]) -> Result<OwnedFd, InjectError> {
        let (scratch, at) = (filter.to_vec(), self.helper.layout);
        listen::write(&self.helper.lock(), at, &scratch);
        let program = self.program;
        on_own_thread(move || listen::listen(program, at))
    }

    /// Makes a thread of the program do one call, and returns the kernel's answer. The call should have no
    /// effect.
    ///
    /// Fails like [`inject`](Self::inject).
    pub fn ask_thread(&self, number: libc::c_long, arguments: [u64; 6]) -> Result<i64, InjectError> {
        let program = self.program;
        on_own_thread(move || listen::ask(program, number, arguments))
    }

    /// Returns the mapper's process number.
    pub fn pid(&self) -> u32 {
        self.helper.pid
    }

    /// Returns the mapper's own number of the file, for calls.
    pub fn file(&self) -> u64 {
        self.file
    }

    /// Returns the mapper's address range in the program, which is not the program's own.
    pub fn range(&self) -> Range<u64> {
        self.helper.range()
    }

    /// Makes the calls in order, and fills in their answers. Costs two wake-ups.
    ///
    /// A mapper may call only `futex`, `madvise`, `mmap`, `mprotect`, `mremap`, `munmap` and `poll`.
    ///
    /// Fails with [`MoverError::Ended`] if the mapper has ended, and never hangs.
    pub fn call(&self, calls: &mut [Call]) -> Result<(), MoverError> {
        self.helper.call(calls)
    }

    /// Returns whether the mapper has ended.
    pub fn has_ended(&self) -> bool {
        self.helper.has_ended()
    }

    /// Ends the mapper at once.
    pub fn end(&self) {
        self.helper.end();
    }
}
