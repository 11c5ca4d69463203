//! The figures of a run while it runs: each client that connects to the socket gets one line of JSON, and the
//! connection ends.
//!
//! The monitor answers between two looks at the tree, and never waits for a client: a line that is not read
//! at once stays in the socket's buffer, which has room for far more.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::report::summary::Summary;

/// A socket that serves the figures. Its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens at a path. Replaces a socket at which no process listens any more.
    ///
    /// # Errors
    /// Returns the kernel's error, and `AddrInUse` if a process listens there, or if the path is not a
    /// socket.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let is_socket = std::fs::metadata(path)?.file_type().is_socket();
                let refused = UnixStream::connect(path).err().map(|error| error.kind());
                if !is_socket || refused != Some(ErrorKind::ConnectionRefused) {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.into() })
    }

    /// Returns a client that has connected and has no answer yet, without waiting.
    pub(crate) fn reader(&self) -> Option<UnixStream> {
        // An error means that no client is there, or that it has disconnected.
        self.listener.accept().ok().map(|(reader, _)| reader)
    }
}

/// Sends a client the figures.
pub(crate) fn tell(mut reader: UnixStream, summary: &Summary) {
    if let Ok(mut line) = serde_json::to_vec(&summary.measured())
        && reader.set_nonblocking(true).is_ok()
    {
        line.push(b'\n');
        // The client may have disconnected.
        let _ = reader.write(&line);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_reader_gets_one_line_and_a_forgotten_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::listen(&path).unwrap();
        assert_eq!(Socket::listen(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        let mut reader = UnixStream::connect(&path).unwrap();
        let summary = Summary { processes: 3, ..Summary::default() };
        // The failed `listen` above has connected as well, and disconnected.
        while let Some(reader) = socket.reader() {
            tell(reader, &summary);
        }
        let mut line = String::new();
        reader.read_to_string(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(told["processes"], 3);
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(Socket::listen(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }
}
