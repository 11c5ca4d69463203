//! The figures of a run while it goes on: whoever connects to the socket gets one line of JSON, and the
//! connection ends.
//!
//! The monitor answers between two looks at the tree. It waits for nobody: a reader that does not take its
//! line at once gets what the socket has room for, which is far more than a line.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::report::summary::Summary;

/// A socket that tells the figures. Its file goes with it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens at a path. A socket at which nobody listens any more is replaced.
    ///
    /// # Errors
    /// The kernel's, and `AddrInUse` where somebody listens there, or where the path is something else.
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

    /// Returns somebody who has connected and has no answer yet. Returns at once.
    pub(crate) fn reader(&self) -> Option<UnixStream> {
        // An error says that nobody is there, or that somebody has gone again.
        self.listener.accept().ok().map(|(reader, _)| reader)
    }
}

/// Answers a reader.
pub(crate) fn tell(mut reader: UnixStream, summary: &Summary) {
    if let Ok(mut line) = serde_json::to_vec(summary)
        && reader.set_nonblocking(true).is_ok()
    {
        line.push(b'\n');
        // The reader may have gone.
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
        // The attempt above has connected as well, and has gone.
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
